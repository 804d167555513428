//! Objects in Kubernetes' protobuf encoding, which typed Go clients send for core kinds. They are read into the same JSON
//! as other requests; answers are JSON, which these clients accept. `messages` has the fields.

mod messages;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use messages::{ENVELOPE, Field, FieldType, message};

/// Every encoded object starts with this.
const START: &[u8] = b"k8s\0";

/// Why a body cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtobufError {
    #[error("the body does not start with k8s\\0")]
    NoStart,
    #[error("the encoding is malformed")]
    Malformed,
    #[error("{0:?} is not accepted in protobuf; send JSON")]
    UnknownKind(String),
}

/// Decodes an object.
pub(crate) fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let encoded = body.strip_prefix(START).ok_or(ProtobufError::NoStart)?;
    let mut raw = None;
    let envelope = read(encoded, ENVELOPE, &mut |number, bytes| {
        if number == 2 {
            raw = Some(bytes.to_vec());
        }
    })?;
    let text = |key: &str| envelope.get("typeMeta").and_then(|meta| meta.get(key)).and_then(Value::as_str);
    let (api_version, kind) = (text("apiVersion").unwrap_or_default(), text("kind").unwrap_or_default());
    let fields = message(kind).ok_or_else(|| ProtobufError::UnknownKind(kind.to_owned()))?;
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    object.extend(read(&raw.unwrap_or_default(), fields, &mut |_, _| {})?);
    Ok(Value::Object(object))
}

/// Reads a message. `other` gets the bytes of fields that are not in the table.
fn read(
    mut bytes: &[u8],
    fields: &[Field],
    other: &mut dyn FnMut(u64, &[u8]),
) -> Result<Map<String, Value>, ProtobufError> {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = tag >> 3;
        let content = match tag & 7 {
            0 => Content::Number(varint(&mut bytes)?),
            1 => Content::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| ProtobufError::Malformed)?;
                Content::Bytes(take(&mut bytes, length)?)
            }
            5 => Content::Bytes(take(&mut bytes, 4)?),
            _ => return Err(ProtobufError::Malformed),
        };
        let Some(field) = fields.iter().find(|field| u64::from(field.number) == number) else {
            if let Content::Bytes(bytes) = content {
                other(number, bytes);
            }
            continue;
        };
        if let Some(value) = value(&content, field)? {
            put(&mut object, field, value);
        }
    }
    Ok(object)
}

enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn put(object: &mut Map<String, Value>, field: &Field, value: Value) {
    let known = object.entry(field.name);
    match (field.kind, value) {
        (FieldType::Texts | FieldType::ByteTexts, Value::Object(entry)) => {
            if let Some(all) = known.or_insert_with(|| json!({})).as_object_mut() {
                all.extend(entry);
            }
        }
        (_, value) if field.is_list => {
            if let Some(items) = known.or_insert_with(|| json!([])).as_array_mut() {
                items.push(value);
            }
        }
        (_, value) => _ = object.insert(field.name.to_owned(), value),
    }
}

/// The JSON of a field; `None` for a value that Go's JSON leaves out.
fn value(content: &Content<'_>, field: &Field) -> Result<Option<Value>, ProtobufError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| ProtobufError::Malformed);
    Ok(match (field.kind, content) {
        (FieldType::Text, Content::Bytes(bytes)) => {
            let text = text(bytes)?;
            (field.is_list || !text.is_empty()).then(|| text.into())
        }
        // Negative numbers have 64 bits too.
        (FieldType::Int, Content::Number(number)) => (*number != 0).then(|| json!(number.cast_signed())),
        (FieldType::Bool, Content::Number(number)) => (*number != 0).then(|| json!(true)),
        (FieldType::OptionalBool, Content::Number(number)) => Some(json!(*number != 0)),
        (FieldType::Texts, Content::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            Some(json!({text(key)?: text(value)?}))
        }
        (FieldType::ByteTexts, Content::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            Some(json!({text(key)?: STANDARD.encode(value)}))
        }
        (FieldType::Message(fields), Content::Bytes(bytes)) => {
            let object = read(bytes, fields, &mut |_, _| {})?;
            (field.is_list || !object.is_empty()).then_some(Value::Object(object))
        }
        (FieldType::Time(precision), Content::Bytes(bytes)) => time(bytes, precision)?,
        (FieldType::IntOrString, Content::Bytes(bytes)) => int_or_string(bytes)?,
        (FieldType::Fields, Content::Bytes(bytes)) => {
            let (_, raw) = entry_parts(bytes, 0, 1)?;
            serde_json::from_slice(raw).ok()
        }
        _ => return Err(ProtobufError::Malformed),
    })
}

/// Key and value of an entry of a map.
fn entry(bytes: &[u8]) -> Result<(&[u8], &[u8]), ProtobufError> {
    entry_parts(bytes, 1, 2)
}

/// The bytes of two fields.
fn entry_parts(mut bytes: &[u8], first: u64, second: u64) -> Result<(&[u8], &[u8]), ProtobufError> {
    let mut parts: (&[u8], &[u8]) = (&[], &[]);
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        if tag & 7 != 2 {
            return Err(ProtobufError::Malformed);
        }
        let length = usize::try_from(varint(&mut bytes)?).map_err(|_| ProtobufError::Malformed)?;
        let content = take(&mut bytes, length)?;
        match tag >> 3 {
            number if number == first => parts.0 = content,
            number if number == second => parts.1 = content,
            _ => {}
        }
    }
    Ok(parts)
}

/// Two numbers of a message, by field number; strings are passed to `text`.
fn numbers(mut bytes: &[u8], text: &mut dyn FnMut(u64, &[u8])) -> Result<[i64; 4], ProtobufError> {
    let mut found = [0; 4];
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => {
                let number = varint(&mut bytes)?.cast_signed();
                if let Some(place) = usize::try_from(tag >> 3).ok().and_then(|at| found.get_mut(at)) {
                    *place = number;
                }
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| ProtobufError::Malformed)?;
                text(tag >> 3, take(&mut bytes, length)?);
            }
            _ => return Err(ProtobufError::Malformed),
        }
    }
    Ok(found)
}

/// A timestamp; `None` if it is not set.
fn time(bytes: &[u8], precision: usize) -> Result<Option<Value>, ProtobufError> {
    let [_, seconds, nanos, _] = numbers(bytes, &mut |_, _| {})?;
    if seconds == 0 && nanos == 0 {
        return Ok(None);
    }
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Malformed)?;
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| ProtobufError::Malformed)?;
    let text = match precision {
        0 => time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        _ => time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
    };
    Ok(Some(text.into()))
}

fn int_or_string(bytes: &[u8]) -> Result<Option<Value>, ProtobufError> {
    let mut text = String::new();
    let [_, kind, number, _] = numbers(bytes, &mut |field, bytes| {
        if field == 3 {
            text = String::from_utf8_lossy(bytes).into_owned();
        }
    })?;
    Ok(match kind {
        1 => (!text.is_empty()).then(|| text.into()),
        _ => (number != 0).then(|| json!(number)),
    })
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(ProtobufError::Malformed)?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ProtobufError::Malformed)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], ProtobufError> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(ProtobufError::Malformed)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ProtobufError, decode};

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
    }

    fn object(kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn objects_become_the_json_that_go_would_write() {
        let labels = field(11, &[field(1, b"app"), field(2, b"cart")].concat());
        let meta = [field(1, b"cart"), field(2, b""), field(3, b"shop"), field(8, b""), labels].concat();
        let port =
            [field(1, b"http"), vec![3 << 3, 80], field(4, &[1 << 3, 0, 2 << 3, 0x90, 0x3f]), vec![5 << 3, 0]].concat();
        let spec = [field(1, &port), field(3, b"10.0.0.1"), vec![13 << 3, 0]].concat();
        let bytes = object("Service", &[field(1, &meta), field(2, &spec), field(3, b"")].concat());
        assert_eq!(
            decode(&bytes),
            Ok(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "cart", "namespace": "shop", "labels": {"app": "cart"}},
                "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}], "clusterIP": "10.0.0.1"},
            }))
        );
    }

    #[test]
    fn secrets_are_base64() {
        let data = field(2, &[field(1, b"k"), field(2, b"v")].concat());
        assert_eq!(decode(&object("Secret", &data)).map(|secret| secret["data"].clone()), Ok(json!({"k": "dg=="})));
    }

    #[test]
    fn malformed_bodies_are_errors() {
        assert_eq!(decode(b"{}"), Err(ProtobufError::NoStart));
        assert_eq!(decode(&object("Deployment", b"")), Err(ProtobufError::UnknownKind("Deployment".to_owned())));
        let whole = object("Secret", &field(2, &[field(1, b"k"), field(2, b"v")].concat()));
        for end in 5..whole.len() {
            // A part of an object is an error, or lacks its kind.
            let _ = decode(&whole[..end]);
        }
        assert_eq!(decode(b"k8s\0\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Err(ProtobufError::Malformed));
    }
}
