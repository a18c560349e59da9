//! Sizes as people write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A number of bytes, written `8GiB`, `512 MiB`, `1.5GB` or `1000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

/// Units, the longer ones of equal endings first.
const UNITS: [(&str, f64); 9] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let text = text.trim();
        let unit = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
        let (number, unit) = unit.unwrap_or((text, 1.0));
        let bytes = number.trim().parse::<f64>().map(|n| (n * unit).round()).ok();
        match bytes.filter(|b| (1.0..=(1u64 << 53) as f64).contains(b)) {
            Some(bytes) => Ok(Bytes(bytes as usize)),
            None => Err(format!("`{text}` is no size: write it as 8GiB, 512MiB or 1500MB")),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = UNITS[..4].iter().rev().find(|(_, unit)| self.0 as f64 % unit == 0.0);
        match largest {
            Some((name, unit)) if self.0 > 0 => write!(f, "{}{name}", self.0 as f64 / unit),
            _ => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Number(u64),
        }
        let text = match Written::deserialize(d)? {
            Written::Text(text) => text,
            Written::Number(n) => n.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("8GiB", 8 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("1000", 1000), ("7 B", 7)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "GiB", "-1", "0", "eight", "8 gib", "1e99", "nan", "inf"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<Bytes>("4096").unwrap(), Bytes(4096));
        assert_eq!(serde_json::to_string(&Bytes(8 << 30)).unwrap(), "\"8GiB\"");
    }
}
