//! The machine that a copy of the stand-in plays: written into the library's file, so that several copies in
//! one process play different machines.

/// Bytes that hold the settings in the library.
pub const ROOM: usize = 256;
/// Their first bytes.
pub const MARK: &[u8; 16] = b"STANDIN-SETTINGS";

/// In the data of the library; [`crate::install`] overwrites it in copies.
#[used]
static SETTINGS: [u8; ROOM] = {
    let mut bytes = [0u8; ROOM];
    let mut i = 0;
    while i < MARK.len() {
        bytes[i] = MARK[i];
        i += 1;
    }
    bytes
};

/// A machine with NPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Name of the chip, as `aclrtGetSocName` gives it.
    pub soc: String,
    /// Devices.
    pub devices: u32,
    /// Bytes of memory of each.
    pub memory: usize,
    /// Version, as `aclsysGetVersionStr` gives it.
    pub version: String,
}

impl Default for Config {
    fn default() -> Config {
        Config { soc: "Ascend910B1".into(), devices: 1, memory: 64 << 20, version: "9.1.0".into() }
    }
}

impl Config {
    /// As bytes for the library.
    pub fn to_bytes(&self) -> [u8; ROOM] {
        let text = format!("{};{};{};{}", self.soc, self.devices, self.memory, self.version);
        let mut bytes = [0; ROOM];
        bytes[..MARK.len()].copy_from_slice(MARK);
        bytes[MARK.len()..MARK.len() + text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    /// The settings of this copy; the defaults if nothing was written.
    pub fn of_this_copy() -> Config {
        // SAFETY: a static of this type. Volatile, because the file may differ from what was compiled.
        let bytes = unsafe { std::ptr::read_volatile(&SETTINGS) };
        let text = String::from_utf8_lossy(&bytes[MARK.len()..]);
        let text = text.trim_end_matches('\0');
        let parts: Vec<_> = text.split(';').collect();
        let &[soc, devices, memory, version] = parts.as_slice() else { return Config::default() };
        let default = Config::default();
        Config {
            soc: soc.into(),
            devices: devices.parse().unwrap_or(default.devices),
            memory: memory.parse().unwrap_or(default.memory),
            version: version.into(),
        }
    }
}
