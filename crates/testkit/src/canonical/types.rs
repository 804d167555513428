//! The messages that the canonical form can decode: Envoy's API, and the DNS name table, which is in no published
//! package.

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions};

const PACKAGE: &str = "istio.networking.nds.v1";

/// Envoy's messages and the name table.
pub(super) fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let mut pool = api::reflect::envoy().clone();
        pool.add_file_descriptor_proto(name_table()).expect("the table is complete; a test opens one");
        pool
    });
    &POOL
}

fn name_table() -> FileDescriptorProto {
    let info = [
        field(1, "ips", Label::Repeated, None),
        field(2, "registry", Label::Optional, None),
        field(3, "shortname", Label::Optional, None),
        field(4, "namespace", Label::Optional, None),
        field(5, "alt_hosts", Label::Repeated, None),
    ];
    let entry = [field(1, "key", Label::Optional, None), field(2, "value", Label::Optional, Some("NameInfo"))];
    let mut entry = message("TableEntry", &entry);
    entry.options = Some(MessageOptions { map_entry: Some(true), ..Default::default() });
    let mut table = message("NameTable", &[field(1, "table", Label::Repeated, Some("NameTable.TableEntry"))]);
    table.nested_type.push(entry);
    FileDescriptorProto {
        name: Some(format!("{PACKAGE}.proto")),
        package: Some(PACKAGE.to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message("NameInfo", &info), table],
        ..Default::default()
    }
}

fn message(name: &str, fields: &[FieldDescriptorProto]) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field: fields.to_vec(), ..Default::default() }
}

/// A field of strings or, with a type, of messages of the same package.
fn field(number: i32, name: &str, label: Label, message: Option<&str>) -> FieldDescriptorProto {
    let kind = if message.is_some() { Type::Message } else { Type::String };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name: message.map(|m| format!(".{PACKAGE}.{m}")),
        ..Default::default()
    }
}
