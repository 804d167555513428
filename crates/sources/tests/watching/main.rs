//! Sources against real folders, real files and real kernel events.

mod files;
mod follower;
mod mock;
mod supervisor;
