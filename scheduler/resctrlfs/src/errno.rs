//! Error numbers, as the kernel gives them.

use std::fmt;

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub const EPERM: Self = Self(libc::EPERM);
    pub const ENOENT: Self = Self(libc::ENOENT);
    pub const ESRCH: Self = Self(libc::ESRCH);
    pub const E2BIG: Self = Self(libc::E2BIG);
    pub const EACCES: Self = Self(libc::EACCES);
    pub const EBUSY: Self = Self(libc::EBUSY);
    pub const EEXIST: Self = Self(libc::EEXIST);
    pub const ENODEV: Self = Self(libc::ENODEV);
    pub const ENOTDIR: Self = Self(libc::ENOTDIR);
    pub const EISDIR: Self = Self(libc::EISDIR);
    pub const EINVAL: Self = Self(libc::EINVAL);
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    pub const EROFS: Self = Self(libc::EROFS);
    pub const ERANGE: Self = Self(libc::ERANGE);
    pub const EOVERFLOW: Self = Self(libc::EOVERFLOW);
    pub const ENOTSUP: Self = Self(libc::ENOTSUP);

    /// The kernel's name; "errno" for those that resctrl never gives.
    pub fn name(self) -> &'static str {
        match self {
            Self::EPERM => "EPERM",
            Self::ENOENT => "ENOENT",
            Self::ESRCH => "ESRCH",
            Self::E2BIG => "E2BIG",
            Self::EACCES => "EACCES",
            Self::EBUSY => "EBUSY",
            Self::EEXIST => "EEXIST",
            Self::ENODEV => "ENODEV",
            Self::ENOTDIR => "ENOTDIR",
            Self::EISDIR => "EISDIR",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EROFS => "EROFS",
            Self::ERANGE => "ERANGE",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            _ => "errno",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What an operation gives, or why the kernel refuses it.
pub type Result<T> = std::result::Result<T, Errno>;
