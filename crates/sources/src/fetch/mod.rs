//! Sources that answer what the model asks for by name (`model::wanted`).

pub mod jwks;
