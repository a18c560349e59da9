//! Enums whose variants are words of a text.

/// An enum of plain words: each variant has its name in our text.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every one.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word in the text form.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            /// The one of a word.
            pub fn from_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|x| x.name() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use words;
