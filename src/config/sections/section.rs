//! Sections whose keys are independent of each other.

use crate::reading::input::ConfigInput;

/// A section whose keys are independent of each other.
pub(crate) trait Section: Sized {
    /// Reads the section. Returns `None` after a problem.
    fn read(input: &mut ConfigInput) -> Option<Self>;
}

/// Declares a section whose fields are the values of keys. Defines the struct, unless `impl` names
/// an existing one, and implements [`Section`].
macro_rules! section {
    ($(#[$of_section:meta])* pub struct $section:ident {
        $($(#[$of_field:meta])* pub $field:ident: $type:ty = $key:ident,)+
    }) => {
        $(#[$of_section])*
        pub struct $section {
            $($(#[$of_field])* pub $field: $type,)+
        }

        $crate::sections::section::section! { impl $section { $($field = $key,)+ } }
    };
    (impl $section:ident { $($field:ident = $key:ident,)+ }) => {
        impl $crate::sections::section::Section for $section {
            fn read(input: &mut $crate::reading::input::ConfigInput) -> Option<Self> {
                // All keys are read before the first `?`, so that all problems are reported at once.
                $(let $field = input.get(&$key);)+
                Some(Self { $($field: $field?,)+ })
            }
        }
    };
}
pub(crate) use section;
