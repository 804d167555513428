//! Sources that answer what the model asks for by name (`model::fetch_requests`).

pub mod jwks;
