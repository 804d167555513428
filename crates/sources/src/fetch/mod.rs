//! Sources of things that the model requests by name (`model::fetch_requests`).

pub mod jwks;
