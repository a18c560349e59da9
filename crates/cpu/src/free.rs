//! Memory that this process can still take, as Linux tells it.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes that this process can still take: the least of three limits. They are the machine's available memory
/// and free swap, what its control group leaves, and its address space (`ulimit -v`). `None` where the system
/// tells nothing.
pub fn free() -> Option<usize> {
    [machine(), group(Path::new("/sys/fs/cgroup")), address_space()].into_iter().flatten().min()
}

fn machine() -> Option<usize> {
    let info = read_to_string("/proc/meminfo").ok()?;
    Some(kibibytes(&info, "MemAvailable:")? + kibibytes(&info, "SwapFree:").unwrap_or(0))
}

/// Memory that the control group (version 2) of this process leaves. Cached files are given back when memory
/// is short.
fn group(root: &Path) -> Option<usize> {
    let own = read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|l| l.strip_prefix("0::/"))?.to_string();
    // In a container the group is the root of what is mounted.
    [root.join(own), root.to_path_buf()].iter().filter_map(|folder| left(folder)).min()
}

fn left(folder: &Path) -> Option<usize> {
    let number = |file: &str| read_to_string(folder.join(file)).ok()?.trim().parse::<usize>().ok();
    let cached = read_to_string(folder.join("memory.stat")).ok();
    let cached = cached
        .and_then(|stat| stat.lines().find_map(|l| l.strip_prefix("file ")?.trim().parse::<usize>().ok()));
    let held = number("memory.current")?.saturating_sub(cached.unwrap_or(0));
    Some(number("memory.max")?.saturating_sub(held))
}

/// Address space that `ulimit -v` leaves; `None` where there is no limit.
pub(crate) fn address_space() -> Option<usize> {
    let limits = read_to_string("/proc/self/limits").ok()?;
    let most = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    let most: usize = most.split_whitespace().next()?.parse().ok()?;
    let used = kibibytes(&read_to_string("/proc/self/status").ok()?, "VmSize:")?;
    Some(most.saturating_sub(used))
}

/// The bytes of a line such as `MemAvailable:   23 kB`.
fn kibibytes(text: &str, key: &str) -> Option<usize> {
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_its_limit_less_what_is_held_and_no_cache() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(left(dir.path()), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        write("memory.stat", "anon 400\nfile 300\nkernel 0\n");
        assert_eq!(left(dir.path()), Some(600));
        write("memory.max", "max\n");
        assert_eq!(left(dir.path()), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some() {
        let total = kibibytes(&read_to_string("/proc/meminfo").unwrap(), "MemTotal:").unwrap();
        let swap = kibibytes(&read_to_string("/proc/meminfo").unwrap(), "SwapTotal:").unwrap_or(0);
        let free = free().expect("Linux tells");
        assert!(free > 0 && free <= total + swap, "{free} of {total}");
    }
}
