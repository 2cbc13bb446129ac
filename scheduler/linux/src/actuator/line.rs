//! One end of what client and actuator talk over.

use nix::sys::socket::{shutdown, Shutdown};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A connected socket that ends for the other side when it is dropped.
#[derive(Debug)]
pub struct Line(OwnedFd);

impl From<OwnedFd> for Line {
    fn from(fd: OwnedFd) -> Self {
        Line(fd)
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Line {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Line {
    /// Closed is not enough: a child that this process has just forked holds the line until it becomes another program, and what the
    /// other side says meanwhile would be lost without a word, or its line taken for one in use. A hardened actuator may not make this
    /// call, nor has it children.
    fn drop(&mut self) {
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sys::socket::{recv, send, socketpair, AddressFamily, MsgFlags, SockFlag, SockType};

    /// What was said before is still heard; then the line is at its end, though a copy (as a forked child has one) is open.
    #[test]
    fn a_dropped_line_ends_for_the_other_side_while_copies_are_open() {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let copy = ours.try_clone().unwrap();
        let line = Line::from(ours);
        send(line.as_raw_fd(), b"last", MsgFlags::empty()).unwrap();
        drop(line);
        let mut buffer = [0; 8];
        let mut hear = || recv(theirs.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
        assert_eq!((hear(), hear()), (Ok(4), Ok(0)));
        assert_eq!(send(theirs.as_raw_fd(), b"more", MsgFlags::MSG_NOSIGNAL), Err(Errno::EPIPE));
        drop(copy);
    }
}
