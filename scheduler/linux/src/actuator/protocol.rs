//! What client and actuator say to each other: one message of a SOCK_SEQPACKET socket a request, one or more a reply.
//!
//! A fixed binary form, little-endian, that needs no parser beyond slices. Decoding is a pure function of the bytes and
//! cannot panic. The actuator speaks first: a reply that says whether it serves this client.
//!
//! | request | bytes |
//! | --- | --- |
//! | all | version (1), operation (1), fields |
//! | field | length (4), UTF-8 text |
//! | reply | version (1), more follows (1), errno (4; 0 = done, [`NO_ERRNO`] = see the text), payload |

use crate::safe::Op;
use std::io;

pub const VERSION: u8 = 1;
/// A longer request is malformed. Room for a safe layout of several hundred writes; below the least socket buffer of Linux.
pub const MAX_REQUEST: usize = 128 << 10;
/// Payload of one reply message; a longer answer comes in several.
pub const MAX_PAYLOAD: usize = 60 << 10;
/// Bytes of a reply before its payload.
pub const REPLY_HEAD: usize = 6;
/// In place of an errno: an error of this side, not the kernel's. Only a short write is one.
pub const NO_ERRNO: i32 = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Read(&'a str),
    Write {
        path: &'a str,
        text: &'a str,
    },
    MakeDir(&'a str),
    RemoveDir(&'a str),
    Rename {
        from: &'a str,
        to: &'a str,
    },
    List(&'a str),
    IsDir(&'a str),
    IsFile(&'a str),
    Writable(&'a str),
    /// To be put in force should the client go; nothing to keep is the goodbye of a client that has given everything back.
    KeepSafe(Vec<SafeOp<'a>>),
    /// Descriptors of the programs in the kernel come with the reply (SCM_RIGHTS).
    Running,
}

/// One step of a safe layout: three fields, the first of them [`SafeOp::WRITE`] or [`SafeOp::REMOVE_DIR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafeOp<'a> {
    Write { path: &'a str, text: &'a str },
    RemoveDir { path: &'a str },
}

impl<'a> SafeOp<'a> {
    const WRITE: &'static str = "write";
    const REMOVE_DIR: &'static str = "rmdir";

    fn fields(self) -> [&'a str; 3] {
        match self {
            SafeOp::Write { path, text } => [Self::WRITE, path, text],
            SafeOp::RemoveDir { path } => [Self::REMOVE_DIR, path, ""],
        }
    }

    fn of(fields: &[&'a str]) -> Result<Self, Malformed> {
        match fields {
            [op, path, text] if *op == Self::WRITE => Ok(SafeOp::Write { path, text }),
            [op, path, ""] if *op == Self::REMOVE_DIR => Ok(SafeOp::RemoveDir { path }),
            _ => Err(Malformed::Fields),
        }
    }

    pub fn path(&self) -> &'a str {
        match self {
            SafeOp::Write { path, .. } | SafeOp::RemoveDir { path } => path,
        }
    }

    /// None for a path that is not UTF-8: no kernel file that we know of has one.
    pub fn from_op(op: &'a Op) -> Option<Self> {
        Some(match op {
            Op::Write { path, text } => SafeOp::Write { path: path.to_str()?, text },
            Op::RemoveDir { path } => SafeOp::RemoveDir { path: path.to_str()? },
        })
    }

    pub fn to_op(self) -> Op {
        match self {
            SafeOp::Write { path, text } => Op::Write { path: path.into(), text: text.into() },
            SafeOp::RemoveDir { path } => Op::RemoveDir { path: path.into() },
        }
    }
}

impl Request<'_> {
    fn operation(&self) -> u8 {
        match self {
            Request::Read(_) => 1,
            Request::Write { .. } => 2,
            Request::MakeDir(_) => 3,
            Request::RemoveDir(_) => 4,
            Request::Rename { .. } => 5,
            Request::List(_) => 6,
            Request::IsDir(_) => 7,
            Request::IsFile(_) => 8,
            Request::Writable(_) => 9,
            Request::KeepSafe(_) => 10,
            Request::Running => 11,
        }
    }

    fn fields(&self) -> Vec<&str> {
        match self {
            Request::Read(p)
            | Request::MakeDir(p)
            | Request::RemoveDir(p)
            | Request::List(p)
            | Request::IsDir(p)
            | Request::IsFile(p)
            | Request::Writable(p) => vec![p],
            Request::Write { path: a, text: b } | Request::Rename { from: a, to: b } => vec![a, b],
            Request::KeepSafe(ops) => ops.iter().flat_map(|op| op.fields()).collect(),
            Request::Running => vec![],
        }
    }

    /// # Errors
    /// `InvalidInput` where it is longer than [`MAX_REQUEST`].
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = vec![VERSION, self.operation()];
        for f in self.fields() {
            out.extend((f.len() as u32).to_le_bytes());
            out.extend(f.as_bytes());
        }
        if out.len() > MAX_REQUEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} bytes are more than the actuator takes", out.len())));
        }
        Ok(out)
    }
}

/// Why a message is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("longer than {MAX_REQUEST} bytes")]
    TooLong,
    #[error("too short for its fields")]
    Short,
    #[error("not of protocol version {VERSION}: run client and actuator of one release")]
    Version,
    #[error("unknown operation")]
    Operation,
    #[error("text that is not UTF-8")]
    Text,
    #[error("wrong number of fields")]
    Fields,
}

/// A request from one message.
///
/// # Errors
/// [`Malformed`]; never panics, whatever the bytes.
pub fn decode(message: &[u8]) -> Result<Request<'_>, Malformed> {
    if message.len() > MAX_REQUEST {
        return Err(Malformed::TooLong);
    }
    let [version, operation, rest @ ..] = message else { return Err(Malformed::Short) };
    if *version != VERSION {
        return Err(Malformed::Version);
    }
    let mut fields = vec![];
    let mut left = rest;
    while !left.is_empty() {
        let (length, after) = left.split_first_chunk::<4>().ok_or(Malformed::Short)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Malformed::Short)?;
        let (field, after) = after.split_at_checked(length).ok_or(Malformed::Short)?;
        fields.push(std::str::from_utf8(field).map_err(|_| Malformed::Text)?);
        left = after;
    }
    Ok(match (operation, fields.as_slice()) {
        (1, [p]) => Request::Read(p),
        (2, [path, text]) => Request::Write { path, text },
        (3, [p]) => Request::MakeDir(p),
        (4, [p]) => Request::RemoveDir(p),
        (5, [from, to]) => Request::Rename { from, to },
        (6, [p]) => Request::List(p),
        (7, [p]) => Request::IsDir(p),
        (8, [p]) => Request::IsFile(p),
        (9, [p]) => Request::Writable(p),
        (10, all) if all.len() % 3 == 0 => Request::KeepSafe(all.chunks_exact(3).map(SafeOp::of).collect::<Result<_, _>>()?),
        (11, []) => Request::Running,
        (1..=11, _) => return Err(Malformed::Fields),
        _ => return Err(Malformed::Operation),
    })
}

/// What the actuator answers: the payload, or an errno with the payload as words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub errno: i32,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn done(payload: impl Into<Vec<u8>>) -> Self {
        Reply { errno: 0, payload: payload.into() }
    }

    pub fn refused(errno: i32, words: impl Into<String>) -> Self {
        let mut payload = words.into().into_bytes();
        payload.truncate(MAX_PAYLOAD);
        Reply { errno, payload }
    }

    pub fn failed(e: &io::Error) -> Self {
        Reply::refused(e.raw_os_error().unwrap_or(NO_ERRNO), e.to_string())
    }

    /// Messages that carry it: one, or as many as a long payload needs.
    pub fn messages(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let count = self.payload.len().div_ceil(MAX_PAYLOAD).max(1);
        (0..count).map(move |n| {
            let part = self.payload.chunks(MAX_PAYLOAD).nth(n).unwrap_or_default();
            let mut out = Vec::with_capacity(REPLY_HEAD + part.len());
            out.extend([VERSION, u8::from(n + 1 < count)]);
            out.extend(self.errno.to_le_bytes());
            out.extend(part);
            out
        })
    }

    /// As the caller would see it locally: the same errno, hence the same words and kind.
    ///
    /// # Errors
    /// Those that the actuator met.
    pub fn into_result(self) -> io::Result<Vec<u8>> {
        match self.errno {
            0 => Ok(self.payload),
            NO_ERRNO => Err(io::Error::new(io::ErrorKind::WriteZero, String::from_utf8_lossy(&self.payload).into_owned())),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }
}

/// Errno, whether more follows, and the payload of one reply message.
///
/// # Errors
/// [`Malformed`].
pub fn decode_reply(message: &[u8]) -> Result<(i32, bool, &[u8]), Malformed> {
    let (head, payload) = message.split_first_chunk::<REPLY_HEAD>().ok_or(Malformed::Short)?;
    let [version, more, e @ ..] = *head;
    if version != VERSION {
        return Err(Malformed::Version);
    }
    Ok((i32::from_le_bytes(e), more != 0, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Request<'static>> {
        vec![
            Request::Read("/a"),
            Request::Write { path: "/a", text: "" },
            Request::MakeDir("/é"),
            Request::RemoveDir("/a"),
            Request::Rename { from: "/a", to: "/b" },
            Request::List("/a"),
            Request::IsDir(""),
            Request::IsFile("/a"),
            Request::Writable("/a"),
            Request::KeepSafe(vec![SafeOp::Write { path: "/a", text: "1" }, SafeOp::RemoveDir { path: "/b" }]),
            Request::KeepSafe(vec![]),
            Request::Running,
        ]
    }

    /// Every request survives the way; cut anywhere it is malformed or another request, never a panic.
    #[test]
    fn requests_survive_the_way() {
        for r in all() {
            let bytes = r.encode().unwrap();
            assert_eq!(decode(&bytes).unwrap(), r);
            (0..bytes.len()).for_each(|n| drop(decode(&bytes[..n])));
        }
        let long = "x".repeat(MAX_REQUEST);
        assert!(Request::Read(&long).encode().is_err());
        assert_eq!(decode(&[VERSION; MAX_REQUEST + 1]), Err(Malformed::TooLong));
        assert_eq!(decode(&[9, 1]), Err(Malformed::Version));
        assert_eq!(decode(&[VERSION, 99]), Err(Malformed::Operation));
        assert_eq!(decode(&[VERSION, 1]), Err(Malformed::Fields));
        assert_eq!(decode(&[VERSION, 1, 1, 0, 0, 0, 0xff]), Err(Malformed::Text));
    }

    /// A long payload comes in parts that add up; an error keeps its errno.
    #[test]
    fn replies_survive_the_way() {
        for n in [0, 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD] {
            let reply = Reply::done(vec![7u8; n]);
            let mut got = vec![];
            let mut last = true;
            for m in reply.messages() {
                assert!(last, "a message after the last");
                let (errno, more, payload) = decode_reply(&m).unwrap();
                assert_eq!(errno, 0);
                got.extend_from_slice(payload);
                last = more;
            }
            assert!(!last && got == reply.payload);
        }
        let e = Reply::failed(&io::Error::from_raw_os_error(libc::EBUSY)).into_result().unwrap_err();
        assert_eq!((e.raw_os_error(), e.to_string()), (Some(libc::EBUSY), io::Error::from_raw_os_error(libc::EBUSY).to_string()));
        let e = Reply::failed(&io::Error::new(io::ErrorKind::WriteZero, "only 1 of 2 bytes were taken")).into_result().unwrap_err();
        assert_eq!((e.kind(), e.to_string().as_str()), (io::ErrorKind::WriteZero, "only 1 of 2 bytes were taken"));
        assert_eq!(decode_reply(&[VERSION]), Err(Malformed::Short));
    }

    proptest! {
        /// No bytes make the decoder panic; what it takes it would have written itself.
        #[test]
        fn any_bytes_are_decoded_or_refused(operation in 0u8..16, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut message = vec![VERSION, operation];
            message.extend(rest);
            if let Ok(r) = decode(&message) {
                prop_assert_eq!(r.encode().unwrap(), message);
            }
        }
    }
}
