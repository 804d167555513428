//! Truth values for conditions that may depend on what is not known here.

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    Yes,
    No,
    Unknown,
}

impl From<bool> for Truth {
    fn from(value: bool) -> Truth {
        if value { Truth::Yes } else { Truth::No }
    }
}

impl std::ops::Not for Truth {
    type Output = Truth;

    fn not(self) -> Truth {
        match self {
            Truth::Yes => Truth::No,
            Truth::No => Truth::Yes,
            Truth::Unknown => Truth::Unknown,
        }
    }
}

impl Truth {
    pub(super) fn all(values: impl IntoIterator<Item = Truth>) -> Truth {
        let mut result = Truth::Yes;
        for value in values {
            match value {
                Truth::No => return Truth::No,
                Truth::Unknown => result = Truth::Unknown,
                Truth::Yes => {}
            }
        }
        result
    }

    pub(super) fn any(values: impl IntoIterator<Item = Truth>) -> Truth {
        !Truth::all(values.into_iter().map(|value| !value))
    }
}

#[cfg(test)]
mod tests {
    use super::Truth::{self, No, Unknown, Yes};

    #[test]
    fn unknown_values_count_only_where_they_decide() {
        assert_eq!((Truth::all([Yes, Unknown, No]), Truth::all([Yes, Unknown]), Truth::all([])), (No, Unknown, Yes));
        assert_eq!((Truth::any([No, Unknown, Yes]), Truth::any([No, Unknown]), Truth::any([])), (Yes, Unknown, No));
    }
}
