//! One file a command of the command line. Nothing below knows them.

pub mod actuate;
pub mod check;
pub mod manual;
pub mod oracle;
pub mod replay;
pub mod resctrlfs;
pub mod reset;
pub mod schema;
pub mod sweep;
pub mod world;
