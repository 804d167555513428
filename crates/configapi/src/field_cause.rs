//! A field that makes an object invalid.

/// One field that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCause {
    pub reason: &'static str,
    pub field: String,
    pub message: String,
}
