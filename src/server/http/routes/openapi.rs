//! The endpoint `GET /openapi.json`: the `OpenAPI` document, generated from the table of routes.

use crate::server::http::bodies::options::RequestOptions;
use crate::server::http::bodies::parameters::{IDEMPOTENCY_KEY, Param, ParamPlace};
use crate::server::http::bodies::problem::HandlerResult;
use crate::server::http::bodies::response::text;
use crate::server::http::bodies::schema::{NAMED, Schema};
use crate::server::http::request_context::Endpoint;
use crate::server::http::request_context::RequestContext;
use axum::http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// The description at the top of the `OpenAPI` document.
const ABOUT: &str = "Locks over HTTP: leases, fencing tokens, fair lines. Errors are problem+json \
    (RFC 9457). Options may be given in the query, or in a body of JSON or a form.";

/// The groups of operations, each with a description and the first parts of its paths.
const TAGS: [(&str, &str, &[&str]); 5] = [
    ("locks", "Locks, their queues and their handovers.", &["locks", "check", "reset"]),
    ("default lock", "One lock with the smallest interface.", &["lock"]),
    ("sessions", "Sessions, which keep many leases alive.", &["sessions"]),
    ("cluster", "The nodes of the cluster, and their state.", &["cluster", "backup", "grant-now"]),
    (
        "server",
        "What a server tells about itself, and what happened at it.",
        &["events", "history", "metrics", "me", "healthz", "readyz", "openapi.json", ""],
    ),
];

/// The `OpenAPI` document, generated once, because the table of routes does not change.
static DOCUMENT: OnceLock<String> = OnceLock::new();

/// Handles `GET /openapi.json`, which documents all `endpoints`.
pub(in crate::server::http) async fn get_document(
    mut call: RequestContext,
    endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>,
) -> HandlerResult {
    RequestOptions::read(&mut call).await?;
    let kind = HeaderValue::from_static("application/json");
    let document = DOCUMENT.get_or_init(|| format!("{:#}\n", document(endpoints)));
    Ok(text(StatusCode::OK, kind, document.as_str()))
}

fn document(endpoints: impl Iterator<Item = (&'static str, &'static Endpoint)>) -> Value {
    let mut paths = Map::new();
    for (path, endpoint) in endpoints {
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[endpoint.method.as_str().to_ascii_lowercase()] = operation(path, endpoint);
    }
    let tags = TAGS.map(|(name, what, _)| json!({ "name": name, "description": what }));
    let schemas: Map<_, _> =
        NAMED.iter().map(|named| (named.name().to_owned(), named.definition())).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "latchfs",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
    })
}

/// Returns the names of the groups to which the operations at a path belong: one.
fn tags(path: &str) -> Vec<&'static str> {
    let first = path.split('/').nth(1).unwrap_or_default();
    let of_path = TAGS.iter().filter(|(_, _, parts)| parts.contains(&first));
    of_path.map(|(name, ..)| *name).collect()
}

fn operation(path: &str, endpoint: &Endpoint) -> Value {
    let doc = &endpoint.doc;
    let mut operation = json!({
        "operationId": doc.id,
        "tags": tags(path),
        "summary": doc.summary,
        "parameters": doc.params.iter().map(parameter).collect::<Vec<_>>(),
        "responses": answers(endpoint),
    });
    let options: Vec<_> =
        doc.params.iter().filter(|param| param.place == ParamPlace::Option).collect();
    if !options.is_empty() {
        let members: Map<_, _> =
            options.iter().map(|param| (param.name.to_owned(), described(param))).collect();
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": members,
        });
        let content = json!({ "application/json": { "schema": schema } });
        operation["requestBody"] = json!({ "required": false, "content": content });
    }
    operation
}

fn parameter(param: &Param) -> Value {
    let place = match param.place {
        ParamPlace::Path => "path",
        ParamPlace::Option | ParamPlace::Query => "query",
        ParamPlace::Header => "header",
    };
    json!({
        "name": param.name,
        "in": place,
        "required": param.needed,
        "description": param.what,
        "schema": param.shape.schema(),
    })
}

fn described(param: &Param) -> Value {
    let mut schema = param.shape.schema();
    schema["description"] = param.what.into();
    schema
}

fn answers(endpoint: &Endpoint) -> Value {
    let answer = |code: u16, schema: Schema| {
        let meaning = StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
        let body = json!({ schema.media(): { "schema": schema.reference() } });
        (code.to_string(), json!({ "description": meaning.unwrap_or("Done"), "content": body }))
    };
    let (code, mut done) = answer(endpoint.doc.code, endpoint.doc.schema);
    let takes_key = endpoint.doc.params.iter().any(|param| param.name == IDEMPOTENCY_KEY.name);
    if takes_key {
        let what = "This is the first answer to a request that was repeated; `current`, if \
            present, is the current state.";
        let schema = json!({ "type": "string", "enum": ["true"] });
        done["headers"] =
            json!({ "Idempotent-Replayed": { "description": what, "schema": schema } });
    }
    let mut answers = Map::new();
    answers.extend([(code, done)]);
    // The status codes in `always` are possible at any endpoint: missing credentials or rights, a
    // slow or long body, and too many requests.
    let always = [401, 403, 408, 413, 429];
    let key_reused = takes_key.then_some(422);
    let problems = endpoint.doc.problems.iter().copied().chain(always).chain(key_reused);
    answers.extend(problems.map(|code| answer(code, Schema::Problem)));
    // The status codes 414 and 431 are sent before a request has been parsed, without a problem
    // document.
    for code in ["414", "431"] {
        answers.insert(code.to_owned(), json!({ "description": "The head is too long" }));
    }
    answers.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::http::routes::route_table::endpoints;
    use std::collections::BTreeSet;

    #[test]
    fn operation_ids_are_unique() {
        let mut seen = BTreeSet::new();
        for (path, endpoint) in endpoints() {
            assert!(seen.insert(endpoint.doc.id), "{path}: {}", endpoint.doc.id);
            let needs = path.contains('{');
            let has = endpoint.doc.params.iter().any(|param| param.place == ParamPlace::Path);
            assert_eq!(needs, has, "{path}");
            assert_eq!(tags(path).len(), 1, "{path}");
        }
    }

    /// Generators of clients make methods of the ids: a verb and what it is about.
    #[test]
    fn operation_ids_begin_with_a_verb() {
        let verbs = "acquire check end forget get keep list open promote put release remove renew \
            reset set steal stream transfer";
        for (path, endpoint) in endpoints() {
            let id = endpoint.doc.id;
            let verb = id.split(|c: char| c.is_ascii_uppercase()).next().unwrap_or_default();
            assert!(verbs.split_whitespace().any(|it| it == verb) && verb != id, "{path}: {id}");
        }
    }

    #[test]
    fn referenced_schemas_are_defined() {
        let text = document(endpoints()).to_string();
        let schemas = &document(endpoints())["components"]["schemas"];
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(schemas.get(name).is_some(), "{name}");
        }
    }
}
