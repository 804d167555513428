//! Sources against real folders, real files and real kernel events.

mod follower;
mod supervisor;
