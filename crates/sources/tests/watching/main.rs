//! Sources against real folders, real files and real kernel events.

mod files;
mod follower;
mod http;
mod jwks;
mod memory;
mod mesh;
mod mock;
mod supervisor;
