//! Sections whose fields are read from keys.

use crate::reading::{AppliesAt, ConfigInput, ConfigKey, Setting, Show};

/// A section of the configuration.
pub(crate) trait Section: Sized {
    /// Reads the section. Returns `None` after a problem.
    fn read(input: &mut ConfigInput) -> Option<Self>;
    /// Takes the values of live keys from `new`.
    fn take_live(&mut self, new: &Self);
}

/// Where a field of a section comes from: a key, or a function.
pub(crate) trait Source<T> {
    /// Reads the field. Returns `None` after a problem.
    fn read(&self, input: &mut ConfigInput) -> Option<T>;
    /// Takes the field from `new` if it is the value of a live key.
    fn take_live(&self, _field: &mut T, _new: &T) {}
}

impl<T: Show + Clone> Source<T> for Setting<T> {
    fn read(&self, input: &mut ConfigInput) -> Option<T> {
        input.get(self)
    }
    fn take_live(&self, field: &mut T, new: &T) {
        take_live(&self.key, field, new);
    }
}

/// Reads a key that may be unset.
impl<T: Show + Clone> Source<Option<T>> for Setting<T> {
    fn read(&self, input: &mut ConfigInput) -> Option<Option<T>> {
        input.optional(self)
    }
    fn take_live(&self, field: &mut Option<T>, new: &Option<T>) {
        take_live(&self.key, field, new);
    }
}

/// Sets `field` to `new` if `key` is live.
fn take_live<T: Clone>(key: &ConfigKey, field: &mut T, new: &T) {
    if key.applies_at == AppliesAt::Live {
        field.clone_from(new);
    }
}

impl<T, F: Fn(&mut ConfigInput) -> Option<T>> Source<T> for F {
    fn read(&self, input: &mut ConfigInput) -> Option<T> {
        self(input)
    }
}

/// Returns the source of a value that is empty if its key is not set.
pub(crate) fn or_empty<T: Show + Default>(
    setting: &'static Setting<T>,
) -> impl Fn(&mut ConfigInput) -> Option<T> {
    |input| Some(input.optional(setting)?.unwrap_or_default())
}

/// Declares a section whose fields have [`Source`]s, and implements [`Section`]. Defines the struct,
/// unless `impl` names an existing struct. The block after it checks what several keys have in
/// common, and computes fields without a source: each field is an `Option` in it, which is `None`
/// after a problem. The block returns `None` after a problem of its own.
///
/// An `optional struct` gets `read_if` instead, whose block returns `Some(None)` if the section is
/// not used.
macro_rules! section {
    ($(#[$of_section:meta])* pub struct $section:ident {
        $($(#[$of_field:meta])* $vis:vis $field:ident: $type:ty $(= $source:expr)?,)+
    } $(|$input:ident| { $($check:tt)* })?) => {
        $(#[$of_section])*
        pub struct $section {
            $($(#[$of_field])* $vis $field: $type,)+
        }

        impl $crate::sections::section::Section for $section {
            fn read(input: &mut $crate::reading::input::ConfigInput) -> Option<Self> {
                // All fields are read before the first `?`, so that all problems are reported at
                // once.
                $($(let $field: Option<$type> =
                    $crate::sections::section::Source::read(&$source, input);)?)+
                $(let $input = input; $($check)*)?
                Some(Self { $($field: $field?,)+ })
            }
            fn take_live(&mut self, new: &Self) {
                $($($crate::sections::section::Source::take_live(
                    &$source, &mut self.$field, &new.$field);)?)+
            }
        }
    };
    (impl $section:ident { $($field:ident = $source:expr,)+ }) => {
        impl $crate::sections::section::Section for $section {
            fn read(input: &mut $crate::reading::input::ConfigInput) -> Option<Self> {
                $(let $field = $crate::sections::section::Source::read(&$source, input);)+
                Some(Self { $($field: $field?,)+ })
            }
            fn take_live(&mut self, new: &Self) {
                $($crate::sections::section::Source::take_live(
                    &$source, &mut self.$field, &new.$field);)+
            }
        }
    };
    ($(#[$of_section:meta])* optional struct $section:ident {
        $($(#[$of_field:meta])* $vis:vis $field:ident: $type:ty $(= $source:expr)?,)+
    } |$input:ident| { $($check:tt)* }) => {
        $(#[$of_section])*
        pub struct $section {
            $($(#[$of_field])* $vis $field: $type,)+
        }

        impl $section {
            /// Reads the section. Returns `Some(None)` if it is not used, and `None` after a
            /// problem.
            pub(crate) fn read_if(
                $input: &mut $crate::reading::input::ConfigInput,
            ) -> Option<Option<Self>> {
                $($(let $field: Option<$type> =
                    $crate::sections::section::Source::read(&$source, $input);)?)+
                $($check)*
                Some(Some(Self { $($field: $field?,)+ }))
            }
        }
    };
}
pub(crate) use section;
