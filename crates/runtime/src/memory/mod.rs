//! Arrays whose pages lie where they are told to.

mod arena;
mod layout;
mod node_box;
mod node_vec;
mod place;
mod replicated_vec;

pub use arena::{NodeArena, NodeArenaBuilder, SharedArena};
pub use layout::Layout;
pub(crate) use node_box::NodeBox;
pub use node_vec::{Block, NodeVec, NodeVecBuilder};
pub(crate) use place::{BATCH_PAGES, HUGE_BYTES, KeptPolicy, mask, prefer_from_now};
pub use place::{Fallback, Placement};
pub use replicated_vec::ReplicatedVec;
