//! Properties of random meshes, from documents to encoded resources.

mod apply;
mod bytes;
mod mesh;
mod visible;
