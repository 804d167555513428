//! What holds for every mesh, whatever is in it and in whatever order it came: from documents over the
//! snapshot and the view to encoded resources.

mod apply;
mod bytes;
mod mesh;
mod visible;
