//! ZooKeeper's messages: lengths and numbers are big-endian, every frame begins with its length. Pure functions.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The request types that are used, by their numbers.
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
const AUTH: i32 = 100;
/// Numbers of requests that are not in the order of the others.
const EVENT_XID: i32 = -1;
const PING_XID: i32 = -2;
const AUTH_XID: i32 = -4;
/// Error codes.
const NO_NODE: i32 = -101;
const NO_AUTH: i32 = -102;

/// A request. Each sets a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZooRequest {
    Children(String),
    Data(String),
    Exists(String),
}

impl ZooRequest {
    pub(super) fn path(&self) -> &str {
        match self {
            ZooRequest::Children(path) | ZooRequest::Data(path) | ZooRequest::Exists(path) => path,
        }
    }
}

/// What a node has become, or the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZooUpdate {
    /// `None` where the node does not exist.
    Children {
        path: String,
        names: Option<Vec<String>>,
    },
    Data {
        path: String,
        data: Option<Bytes>,
    },
    Exists {
        path: String,
        is_found: bool,
    },
    /// The node may not be read.
    Forbidden {
        path: String,
    },
    Changed {
        path: String,
        change: NodeChange,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    Created,
    Deleted,
    Data,
    Children,
}

/// One frame from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZooFrame {
    Pong,
    Authenticated,
    Event {
        path: String,
        change: NodeChange,
    },
    /// The answer to the request with this number.
    Reply {
        xid: i32,
        error: i32,
        body: Bytes,
    },
}

/// The server's answer to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connected {
    /// Milliseconds; not positive where the server refuses the session.
    pub(super) timeout: i32,
}

/// A message that is not of this protocol, or an error of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("the server sent a malformed message")]
    Malformed,
    #[error("the server refused the user")]
    AuthFailed,
    #[error("the session ended")]
    SessionEnded,
    #[error("error {code} for {path}")]
    Server { path: String, code: i32 },
    #[error("the server answered request {found}, expected {expected}")]
    OutOfOrder { found: i32, expected: i32 },
}

/// Opens a new session.
pub(super) fn connect(timeout_millis: i32) -> BytesMut {
    frame(|body| {
        // Version, last transaction seen, timeout, session, password, read-only.
        body.put_i32(0);
        body.put_i64(0);
        body.put_i32(timeout_millis);
        body.put_i64(0);
        put_bytes(body, &[0; 16]);
        body.put_u8(0);
    })
}

pub(super) fn ping() -> BytesMut {
    frame(|body| {
        body.put_i32(PING_XID);
        body.put_i32(PING);
    })
}

/// Authenticates with the digest scheme.
pub(super) fn authenticate(user: &str, password: &str) -> BytesMut {
    frame(|body| {
        body.put_i32(AUTH_XID);
        body.put_i32(AUTH);
        body.put_i32(0);
        put_bytes(body, b"digest");
        put_bytes(body, format!("{user}:{password}").as_bytes());
    })
}

pub(super) fn request(xid: i32, request: &ZooRequest) -> BytesMut {
    let number = match request {
        ZooRequest::Children(_) => GET_CHILDREN,
        ZooRequest::Data(_) => GET_DATA,
        ZooRequest::Exists(_) => EXISTS,
    };
    frame(|body| {
        body.put_i32(xid);
        body.put_i32(number);
        put_bytes(body, request.path().as_bytes());
        body.put_u8(1);
    })
}

fn frame(fill: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut frame = BytesMut::from(&[0; 4][..]);
    fill(&mut frame);
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

fn put_bytes(body: &mut BytesMut, bytes: &[u8]) {
    body.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    body.put_slice(bytes);
}

pub(super) fn connected(mut body: Bytes) -> Result<Connected, ProtocolError> {
    let _version = read_i32(&mut body)?;
    Ok(Connected { timeout: read_i32(&mut body)? })
}

/// Reads a frame without its length.
pub(super) fn read_frame(mut body: Bytes) -> Result<ZooFrame, ProtocolError> {
    let xid = read_i32(&mut body)?;
    let _transaction = body.try_get_i64().map_err(|_| ProtocolError::Malformed)?;
    let error = read_i32(&mut body)?;
    match xid {
        PING_XID => Ok(ZooFrame::Pong),
        AUTH_XID if error == 0 => Ok(ZooFrame::Authenticated),
        AUTH_XID => Err(ProtocolError::AuthFailed),
        EVENT_XID => event(body),
        xid => Ok(ZooFrame::Reply { xid, error, body }),
    }
}

fn event(mut body: Bytes) -> Result<ZooFrame, ProtocolError> {
    let kind = read_i32(&mut body)?;
    let _state = read_i32(&mut body)?;
    let path = read_text(&mut body)?;
    let change = match kind {
        1 => NodeChange::Created,
        2 => NodeChange::Deleted,
        3 => NodeChange::Data,
        4 => NodeChange::Children,
        -1 => return Err(ProtocolError::SessionEnded),
        _ => return Err(ProtocolError::Malformed),
    };
    Ok(ZooFrame::Event { path, change })
}

/// The meaning of a reply to `request`.
pub(super) fn update(request: ZooRequest, error: i32, mut body: Bytes) -> Result<ZooUpdate, ProtocolError> {
    match error {
        0 | NO_NODE => {}
        NO_AUTH => return Ok(ZooUpdate::Forbidden { path: request.path().to_owned() }),
        code => return Err(ProtocolError::Server { path: request.path().to_owned(), code }),
    }
    let is_found = error == 0;
    Ok(match request {
        ZooRequest::Exists(path) => ZooUpdate::Exists { path, is_found },
        ZooRequest::Data(path) => {
            let data = if is_found { Some(read_bytes(&mut body)?) } else { None };
            ZooUpdate::Data { path, data }
        }
        ZooRequest::Children(path) => {
            let names = if is_found { Some(read_names(&mut body)?) } else { None };
            ZooUpdate::Children { path, names }
        }
    })
}

fn read_names(body: &mut Bytes) -> Result<Vec<String>, ProtocolError> {
    let count = read_i32(body)?;
    let mut names = Vec::new();
    for _ in 0..count.max(0) {
        names.push(read_text(body)?);
    }
    Ok(names)
}

fn read_i32(body: &mut Bytes) -> Result<i32, ProtocolError> {
    body.try_get_i32().map_err(|_| ProtocolError::Malformed)
}

fn read_text(body: &mut Bytes) -> Result<String, ProtocolError> {
    String::from_utf8(read_bytes(body)?.into()).map_err(|_| ProtocolError::Malformed)
}

/// A length and that many bytes; a length of -1 means none.
fn read_bytes(body: &mut Bytes) -> Result<Bytes, ProtocolError> {
    let length = usize::try_from(read_i32(body)?.max(0)).map_err(|_| ProtocolError::Malformed)?;
    if length > body.len() {
        return Err(ProtocolError::Malformed);
    }
    Ok(body.split_to(length))
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};

    use super::{NodeChange, ProtocolError, ZooFrame, ZooRequest, ZooUpdate, read_frame, request, update};

    #[test]
    fn requests_begin_with_their_length_and_number() {
        let bytes = request(7, &ZooRequest::Children("/a".to_owned()));
        assert_eq!(&bytes[..], [0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 2, b'/', b'a', 1]);
    }

    fn reply(fill: impl FnOnce(&mut BytesMut)) -> Bytes {
        let mut body = BytesMut::new();
        fill(&mut body);
        body.freeze()
    }

    #[test]
    fn replies_and_events_are_read() {
        let children = || ZooRequest::Children("/a".to_owned());
        let names = reply(|body| {
            body.put_i32(2);
            for name in ["x", "y"] {
                body.put_i32(1);
                body.put_slice(name.as_bytes());
            }
        });
        let path = "/a".to_owned();
        let expected = ZooUpdate::Children { path: path.clone(), names: Some(vec!["x".to_owned(), "y".to_owned()]) };
        assert_eq!(update(children(), 0, names), Ok(expected));
        let gone = ZooUpdate::Children { path: path.clone(), names: None };
        assert_eq!(update(children(), -101, Bytes::new()), Ok(gone));
        assert_eq!(update(children(), -102, Bytes::new()), Ok(ZooUpdate::Forbidden { path: path.clone() }));
        assert_eq!(update(children(), -4, Bytes::new()), Err(ProtocolError::Server { path: path.clone(), code: -4 }));
        let event = reply(|body| {
            body.put_i32(-1);
            body.put_i64(-1);
            body.put_i32(0);
            body.put_i32(4);
            body.put_i32(3);
            body.put_i32(2);
            body.put_slice(b"/a");
        });
        assert_eq!(read_frame(event), Ok(ZooFrame::Event { path, change: NodeChange::Children }));
    }

    #[test]
    fn malformed_frames_are_errors() {
        assert_eq!(read_frame(Bytes::from_static(&[0, 0])), Err(ProtocolError::Malformed));
        let children = || ZooRequest::Children("/a".to_owned());
        // Two billion names, one of two billion bytes, one that is not UTF-8.
        for bytes in
            [&[0x7f, 0xff, 0xff, 0xff][..], &[0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, 1], &[0, 0, 0, 1, 0, 0, 0, 1, 0xff]]
        {
            let read = update(children(), 0, Bytes::copy_from_slice(bytes));
            assert_eq!(read, Err(ProtocolError::Malformed), "{bytes:?}");
        }
    }
}
