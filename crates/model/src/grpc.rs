//! gRPC status codes by name.

/// Status names, indexed by code.
const STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The code of a status name.
pub fn status(name: &str) -> Option<u32> {
    (0..).zip(STATUSES).find(|(_, known)| *known == name).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::status;

    #[test]
    fn statuses_have_the_numbers_of_grpc() {
        assert_eq!([status("OK"), status("INTERNAL"), status("UNAUTHENTICATED")], [Some(0), Some(13), Some(16)]);
        assert_eq!([status("ok"), status("")], [None, None]);
    }
}
