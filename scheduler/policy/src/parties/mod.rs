//! PARTIES (Chen, Delimitrou, Martinez, ASPLOS 2019) in its forms.

pub mod be;

pub use be::{Parties, PartiesSettings};
