//! An optimizer's settings as a table: documentation, default and range of each. The struct that holds them,
//! its defaults and checks, and the page of settings are made from it.

use crate::error::{Error, Result};
use std::fmt;

/// Numbers that a setting may be: from `low`, or above it if `open`, to below `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    low: f64,
    open: bool,
    high: f64,
}

/// Any finite number from 0 on.
pub(super) const NOT_NEGATIVE: Range = Range { low: 0.0, open: false, high: f64::INFINITY };
/// Any finite number above 0.
pub(super) const POSITIVE: Range = Range { low: 0.0, open: true, high: f64::INFINITY };
/// Any number from 0 to below 1.
pub(super) const BELOW_ONE: Range = Range { low: 0.0, open: false, high: 1.0 };
/// Any finite number.
pub(super) const FINITE: Range = Range { low: f64::NEG_INFINITY, open: true, high: f64::INFINITY };

/// In the notation of intervals: `[0, 1)`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |x: f64| match x {
            f64::INFINITY => "∞".to_string(),
            f64::NEG_INFINITY => "−∞".to_string(),
            x => x.to_string(),
        };
        write!(f, "{}{}, {})", if self.open { '(' } else { '[' }, bound(self.low), bound(self.high))
    }
}

impl Range {
    /// True for a number in it; false for NaN.
    fn contains(&self, x: f64) -> bool {
        (if self.open { x > self.low } else { x >= self.low }) && x < self.high
    }

    /// Refuses numbers that are not in it.
    pub(super) fn check(&self, setting: &'static str, numbers: impl Numbers) -> Result<()> {
        match numbers.numbers().into_iter().find(|x| !self.contains(*x)) {
            Some(x) => Err(Error::config(setting, format!("must be in {self}, it is {x}"))),
            None => Ok(()),
        }
    }
}

/// A setting that is one number or two, both of one range.
pub(super) trait Numbers {
    fn numbers(self) -> impl IntoIterator<Item = f64>;
}

impl Numbers for f64 {
    fn numbers(self) -> impl IntoIterator<Item = f64> {
        [self]
    }
}

impl Numbers for (f64, f64) {
    fn numbers(self) -> impl IntoIterator<Item = f64> {
        [self.0, self.1]
    }
}

/// A setting of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Its name in files.
    pub name: &'static str,
    /// Its type in Rust.
    pub ty: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The numbers that it may be, if it is a number.
    pub range: Option<Range>,
}

/// The settings of an optimizer with what is known of them before they are given. Made by [`settings!`].
pub trait SettingTable {
    /// The optimizer's documentation.
    fn doc(&self) -> &'static str;
    /// All of them, in their order.
    fn settings(&self) -> &'static [Setting];
    /// Refuses numbers out of their ranges.
    ///
    /// # Errors
    /// `Config`, naming the setting.
    fn in_range(&self) -> Result<()>;
}

/// The rates that every optimizer has. Made by [`settings!`] for those that have them as settings of their
/// own.
pub trait Rates {
    /// Peak learning rate.
    fn lr(&self) -> f64;
    /// Weight decay of either kind.
    fn weight_decay(&self) -> f64;
}

/// Declares an optimizer by its settings, `name: type = default` followed by a range for numbers. One whose
/// first setting is `lr` has [`Rates`].
macro_rules! settings {
    ($(#[doc = $about:literal])+ $Name:ident {
        $(#[doc = $lr_doc:literal])+ lr: f64 = $lr:expr, $lr_range:expr;
        $($rest:tt)*
    }) => {
        settings! { @table $(#[doc = $about])+ $Name {
            $(#[doc = $lr_doc])+ lr: f64 = $lr, $lr_range;
            $($rest)*
        } }

        impl $crate::optim::Rates for $Name {
            fn lr(&self) -> f64 {
                self.lr
            }

            fn weight_decay(&self) -> f64 {
                self.weight_decay
            }
        }
    };
    ($(#[doc = $about:literal])+ $Name:ident { $($all:tt)* }) => {
        settings! { @table $(#[doc = $about])+ $Name { $($all)* } }
    };
    (@table $(#[doc = $about:literal])+ $Name:ident {
        $($(#[doc = $doc:literal])+ $setting:ident: $ty:ty = $default:expr $(, $range:expr)?;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Name {
            $($(#[doc = $doc])+ pub $setting: $ty,)+
        }

        impl Default for $Name {
            fn default() -> Self {
                $Name { $($setting: $default,)+ }
            }
        }

        impl $crate::optim::SettingTable for $Name {
            fn doc(&self) -> &'static str {
                concat!($($about),+).trim_ascii()
            }

            fn settings(&self) -> &'static [$crate::optim::Setting] {
                const {
                    &[$($crate::optim::Setting {
                        name: stringify!($setting),
                        ty: stringify!($ty),
                        doc: concat!($($doc),+).trim_ascii(),
                        range: settings!(@range $($range)?),
                    },)+]
                }
            }

            fn in_range(&self) -> $crate::error::Result<()> {
                $($($range.check(stringify!($setting), self.$setting)?;)?)+
                Ok(())
            }
        }
    };
    (@range) => { None };
    (@range $range:expr) => { Some($range) };
}
pub(super) use settings;
