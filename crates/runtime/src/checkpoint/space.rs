//! Free space on disk.

use std::path::Path;

/// Bytes that this process may still write to the file system of `dir`; `None` where the system does not say.
pub(super) fn free(dir: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let found = rustix::fs::statvfs(dir).ok()?;
        // Some network file systems report nothing at all, which is no full disk.
        (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}
