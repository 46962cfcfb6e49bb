//! The table of routes, from which the router (`dispatch`) and the `OpenAPI` document are built.
//!
//! The endpoint `GET /openapi.json`: the `OpenAPI` document, generated from the table of routes.

use crate::auth::permissions::Operation;
use crate::server::http::bodies::options::RequestOptions;
use crate::server::http::bodies::parameters::{
    ACQUISITION, AFTER, CHECKED_NAME, CHECKED_TOKEN, CHECKS, CLIENT, CONSISTENCY, COUNTER, GRACE,
    HANDOVER, IDEMPOTENCY_KEY, IF_MATCH, LAST_EVENT_ID, LIMIT, MAX, MODE, NAME, NOTE, NOW, PREFIX,
    Param, ParamPlace, REASON, REENTRANT, REMEMBER, REMEMBERED, SESSION, SESSION_ID, SINCE, TOKEN,
    TTL, WAIT,
};
use crate::server::http::bodies::problem::HandlerResult;
use crate::server::http::bodies::response::text;
use crate::server::http::bodies::schema::{NAMED, Schema};
use crate::server::http::handlers::{
    batch_endpoint, cluster, devices, events, list, lock_resource, metrics, page, sessions,
};
use crate::server::http::request_context::{Endpoint, RequestContext, doc, endpoint};
use axum::http::{HeaderValue, Method, StatusCode};
use serde_json::{Map, Value, json};
use std::future::ready;
use std::sync::OnceLock;

/// One path with its endpoints.
pub(in crate::server::http) struct Route {
    /// The path in the syntax of the `OpenAPI` document.
    pub(in crate::server::http) path: &'static str,
    /// The path in the router's syntax; `None` if the pattern of the preceding route also matches
    /// this path.
    pub(in crate::server::http) pattern: Option<&'static str>,
    pub(in crate::server::http) endpoints: &'static [Endpoint],
}

/// Returns all endpoints of the table with their paths, in order.
pub(crate) fn endpoints() -> impl Iterator<Item = (&'static str, &'static Endpoint)> {
    ROUTES.iter().flat_map(|route| route.endpoints.iter().map(|endpoint| (route.path, endpoint)))
}

/// Returns the endpoints that only latchfs uses, with their paths.
pub(in crate::server::http) fn internal_endpoints()
-> impl Iterator<Item = (&'static str, &'static Endpoint)> {
    let internal = batch_endpoint::ENDPOINTS.iter().chain(devices::ENDPOINTS);
    internal.map(|(path, endpoint)| (*path, endpoint))
}

/// Returns all endpoints whose requests are counted, in the order of their counters: those of the
/// table, then the internal ones.
pub(in crate::server::http) fn counted_endpoints()
-> impl Iterator<Item = (&'static str, &'static Endpoint)> {
    endpoints().chain(internal_endpoints())
}

/// Returns the method and path of every endpoint, including internal ones, with the operation whose
/// permissions it needs.
pub(crate) fn requests() -> Vec<(String, Operation)> {
    let documented = ROUTES.iter().flat_map(|route| {
        route
            .endpoints
            .iter()
            .map(|endpoint| (format!("{} {}", endpoint.method, route.path), endpoint.operation))
    });
    let own = internal_endpoints()
        .map(|(path, endpoint)| (format!("{} {path}", endpoint.method), endpoint.operation));
    documented.chain(own).collect()
}

/// Parameters of an acquire request, which may be a PUT or a POST.
const ACQUIRES: &[Param] = &[
    NAME,
    CLIENT,
    TTL,
    GRACE,
    MODE,
    MAX,
    NOTE,
    TOKEN,
    WAIT,
    REENTRANT,
    SESSION,
    REMEMBER,
    REASON,
    IF_MATCH,
    IDEMPOTENCY_KEY,
];

/// Error status codes of an acquire request.
const ACQUIRE_PROBLEMS: &[u16] = &[400, 403, 409, 410, 412, 415, 429, 503];

/// All documented routes.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/lock",
        pattern: Some("/lock"),
        endpoints: &[
            endpoint(
                Method::GET,
                Operation::ShowLock,
                |call| Box::pin(lock_resource::show_default(call)),
                doc(
                    "getDefaultLock",
                    "The status of the lock 'default'.",
                    &[],
                    200,
                    Schema::SeedStatus,
                    &[400],
                ),
            ),
            endpoint(
                Method::POST,
                Operation::Acquire,
                |call| Box::pin(lock_resource::acquire_default(call)),
                doc(
                    "acquireDefaultLock",
                    "Acquire or renew the lock 'default'.",
                    &[CLIENT, TTL],
                    200,
                    Schema::Acquired,
                    &[400, 409, 415, 429, 503],
                ),
            ),
            endpoint(
                Method::DELETE,
                Operation::Release,
                |call| Box::pin(lock_resource::release_default(call)),
                doc(
                    "releaseDefaultLock",
                    "Release the lock 'default'.",
                    &[CLIENT],
                    200,
                    Schema::SeedReleased,
                    &[400, 403, 415],
                ),
            ),
        ],
    },
    Route {
        path: "/locks",
        pattern: Some("/locks"),
        endpoints: &[
            endpoint(
                Method::GET,
                Operation::ListLocks,
                |call| Box::pin(list::list(call)),
                doc(
                    "listLocks",
                    "Locks that are held, in grace or waited for, by name.",
                    &[PREFIX, AFTER, LIMIT, CONSISTENCY, REMEMBERED],
                    200,
                    Schema::Page,
                    &[400],
                ),
            ),
            endpoint(
                Method::DELETE,
                Operation::ReleaseAll,
                |call| Box::pin(sessions::release_all(call)),
                doc(
                    "releaseAllLocks",
                    "Release all locks that the client holds, and leave all its queues.",
                    &[CLIENT],
                    200,
                    Schema::ReleasedAll,
                    &[400, 403, 415, 503],
                ),
            ),
        ],
    },
    Route { path: "/locks/{name}", pattern: Some("/locks/{*name}"), endpoints: LOCK },
    // The pattern `/locks/{*name}` of the preceding route matches this path too. `dispatch`
    // distinguishes a steal from other requests.
    Route { path: "/locks/{name}/steal", pattern: None, endpoints: STEAL },
    // The pattern `/locks/{*name}` matches this path as well.
    Route { path: "/locks/{name}/previous", pattern: None, endpoints: PREVIOUS },
    Route {
        path: "/check",
        pattern: Some("/check"),
        endpoints: &[endpoint(
            Method::POST,
            Operation::CheckToken,
            |call| Box::pin(list::check(call)),
            doc(
                "checkTokens",
                "Whether tokens are current: for a guarded resource, before it accepts a change.",
                &[CHECKED_NAME, CHECKED_TOKEN, CHECKS],
                200,
                Schema::Checked,
                &[400, 415],
            ),
        )],
    },
    Route {
        path: "/sessions",
        pattern: Some("/sessions"),
        endpoints: &[endpoint(
            Method::POST,
            Operation::OpenSession,
            |call| Box::pin(sessions::open(call)),
            doc(
                "openSession",
                "Open a session: leases that hang on it are kept alive by one call.",
                &[CLIENT, TTL, GRACE, IDEMPOTENCY_KEY],
                201,
                Schema::Opened,
                &[400, 415, 429, 503],
            ),
        )],
    },
    Route {
        path: "/sessions/{session}",
        pattern: Some("/sessions/{session}"),
        endpoints: SESSIONS,
    },
    Route {
        path: "/sessions/{session}/keepalive",
        pattern: Some("/sessions/{session}/keepalive"),
        endpoints: &[endpoint(
            Method::POST,
            Operation::KeepAlive,
            |call| Box::pin(sessions::keep_alive(call)),
            doc(
                "keepSessionAlive",
                "Keep a session and its leases alive, and list the leases that it has lost.",
                &[SESSION_ID],
                200,
                Schema::Kept,
                &[400, 410],
            ),
        )],
    },
    Route {
        path: "/events",
        pattern: Some("/events"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::FollowEvents,
            |call| Box::pin(events::stream(call)),
            doc(
                "streamEvents",
                "Lock and session events as server-sent events.",
                &[PREFIX, SINCE, LAST_EVENT_ID],
                200,
                Schema::Text("text/event-stream"),
                &[400, 429],
            ),
        )],
    },
    Route {
        path: "/history",
        pattern: Some("/history"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::ShowHistory,
            |call| Box::pin(list::history(call)),
            doc(
                "getHistory",
                "Tenures that ended within the last hour, since the server began.",
                &[PREFIX],
                200,
                Schema::History,
                &[400],
            ),
        )],
    },
    Route { path: "/reset", pattern: Some("/reset"), endpoints: cluster::RESET },
    Route { path: "/grant-now", pattern: Some("/grant-now"), endpoints: cluster::GRANT_NOW },
    Route { path: "/backup", pattern: Some("/backup"), endpoints: cluster::BACKUP },
    Route { path: "/metrics", pattern: Some("/metrics"), endpoints: METRICS },
    Route { path: "/cluster", pattern: Some("/cluster"), endpoints: cluster::SHOW },
    Route {
        path: "/cluster/pending",
        pattern: Some("/cluster/pending"),
        endpoints: cluster::PENDING,
    },
    Route {
        path: "/cluster/transfer",
        pattern: Some("/cluster/transfer"),
        endpoints: cluster::TRANSFER,
    },
    Route {
        path: "/cluster/nodes/{node}",
        pattern: Some("/cluster/nodes/{node}"),
        endpoints: cluster::REMOVE,
    },
    Route {
        path: "/cluster/nodes/{node}/promote",
        pattern: Some("/cluster/nodes/{node}/promote"),
        endpoints: cluster::PROMOTE,
    },
    Route { path: "/", pattern: Some("/"), endpoints: PAGE },
    Route {
        path: "/me",
        pattern: Some("/me"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::ShowCaller,
            |call| Box::pin(page::me(call)),
            doc("getCaller", "What the caller may do.", &[], 200, Schema::Me, &[400]),
        )],
    },
    Route {
        path: "/healthz",
        pattern: Some("/healthz"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::ShowHealth,
            |_| Box::pin(ready(Ok(metrics::alive()))),
            doc("getLiveness", "The server lives.", &[], 200, Schema::Health, &[]),
        )],
    },
    Route {
        path: "/readyz",
        pattern: Some("/readyz"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::ShowHealth,
            |call| Box::pin(ready(metrics::ready(&call))),
            doc("getReadiness", "The server grants locks.", &[], 200, Schema::Health, &[503]),
        )],
    },
    Route {
        path: "/openapi.json",
        pattern: Some("/openapi.json"),
        endpoints: &[endpoint(
            Method::GET,
            Operation::ShowDocument,
            |call| Box::pin(get_document(call, endpoints())),
            doc("getOpenApi", "This document.", &[], 200, Schema::Document, &[]),
        )],
    },
];

const LOCK: &[Endpoint] = &[
    endpoint(
        Method::GET,
        Operation::ShowLock,
        |call| Box::pin(lock_resource::get_lock(call)),
        doc(
            "getLock",
            "The status, also of a free lock.",
            &[NAME, CONSISTENCY],
            200,
            Schema::Status,
            &[400],
        ),
    ),
    endpoint(
        Method::POST,
        Operation::Acquire,
        |call| Box::pin(lock_resource::acquire(call)),
        doc(
            "acquireLock",
            "Acquire a free lock; renew the lease that a token or its session names, or the \
             client's own with reentrant.",
            ACQUIRES,
            200,
            Schema::Granted,
            ACQUIRE_PROBLEMS,
        ),
    ),
    endpoint(
        Method::PUT,
        Operation::Acquire,
        |call| Box::pin(lock_resource::acquire(call)),
        doc(
            "putLock",
            "The same as POST, also for names whose last part is 'steal'.",
            ACQUIRES,
            200,
            Schema::Granted,
            ACQUIRE_PROBLEMS,
        ),
    ),
    endpoint(
        Method::PATCH,
        Operation::Renew,
        |call| Box::pin(lock_resource::renew(call)),
        doc(
            "renewLock",
            "Renew, and never acquire. What is not said stays as it is.",
            &[NAME, CLIENT, TTL, GRACE, NOTE, TOKEN, SESSION, IF_MATCH, IDEMPOTENCY_KEY],
            200,
            Schema::Granted,
            ACQUIRE_PROBLEMS,
        ),
    ),
    endpoint(
        Method::DELETE,
        Operation::Release,
        |call| Box::pin(lock_resource::release(call)),
        doc(
            "releaseLock",
            "Release; with a token that tenure and nothing newer. A waiter leaves the queue.",
            &[NAME, CLIENT, TOKEN, ACQUISITION, HANDOVER, COUNTER, IF_MATCH, IDEMPOTENCY_KEY],
            200,
            Schema::Released,
            &[400, 403, 409, 410, 412, 415, 503],
        ),
    ),
];

pub(in crate::server::http) const STEAL: &[Endpoint] = &[endpoint(
    Method::POST,
    Operation::Steal,
    |call| Box::pin(lock_resource::steal(call)),
    doc(
        "stealLock",
        "Take a live lock from its holder. Nobody may use it for 1 s, the thief neither; if its \
         name is remembered, until the holder has released it or its lease has expired.",
        &[NAME, CLIENT, REASON, TOKEN, TTL, GRACE, NOTE, SESSION, NOW, IDEMPOTENCY_KEY],
        200,
        Schema::Granted,
        &[400, 403, 410, 412, 415, 429, 503],
    ),
)];

pub(in crate::server::http) const PREVIOUS: &[Endpoint] = &[
    endpoint(
        Method::GET,
        Operation::ShowLock,
        |call| Box::pin(list::get_previous(call)),
        doc(
            "getPrevious",
            "What is remembered of a lock's name: how many grants it had, and the last handover.",
            &[NAME],
            200,
            Schema::Previous,
            &[400],
        ),
    ),
    endpoint(
        Method::PATCH,
        Operation::Annotate,
        |call| Box::pin(list::set(call)),
        doc(
            "setHandover",
            "Set the handover of the tenure that holds the lock. Its name must be remembered.",
            &[NAME, CLIENT, HANDOVER, COUNTER, TOKEN, IF_MATCH, IDEMPOTENCY_KEY],
            200,
            Schema::HandedOver,
            &[400, 403, 409, 410, 412, 415, 503],
        ),
    ),
    endpoint(
        Method::DELETE,
        Operation::ForgetName,
        |call| Box::pin(list::forget(call)),
        doc(
            "forgetName",
            "Have the name of a free lock forgotten.",
            &[NAME, CLIENT, IDEMPOTENCY_KEY],
            200,
            Schema::Forgotten,
            &[400, 403, 409, 415, 503],
        ),
    ),
];

const SESSIONS: &[Endpoint] = &[
    endpoint(
        Method::GET,
        Operation::ShowSession,
        |call| Box::pin(sessions::get_session(call)),
        doc(
            "getSession",
            "A session and its leases.",
            &[SESSION_ID],
            200,
            Schema::Session,
            &[400, 403, 410],
        ),
    ),
    endpoint(
        Method::DELETE,
        Operation::EndSession,
        |call| Box::pin(sessions::end(call)),
        doc(
            "endSession",
            "End a session, and release all that hangs on it; a lock whose name is remembered is \
             free when its holder releases it, or when the session would have expired.",
            &[SESSION_ID, NOW],
            200,
            Schema::Ended,
            &[400, 403, 410],
        ),
    ),
];

const METRICS: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::ShowMetrics,
    |call| Box::pin(metrics::get_metrics(call, counted_endpoints())),
    doc(
        "getMetrics",
        "Counts for Prometheus.",
        &[],
        200,
        Schema::Text("text/plain; version=0.0.4; charset=utf-8"),
        &[403],
    ),
)];

const PAGE: &[Endpoint] = &[endpoint(
    Method::GET,
    Operation::ShowPage,
    |call| Box::pin(page::get_page(call)),
    doc(
        "getPage",
        "A live page of the held locks.",
        &[],
        200,
        Schema::Text("text/html; charset=utf-8"),
        &[400],
    ),
)];

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
