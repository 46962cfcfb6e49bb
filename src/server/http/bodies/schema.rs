//! JSON Schemas of response bodies.

use crate::status::{FieldKind, WAITER_FIELDS, WaiterField};
use serde_json::{Value, json};

/// The kinds of response bodies, each with a JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server::http) enum Schema {
    Health,
    Acquired,
    SeedStatus,
    SeedReleased,
    Status,
    Granted,
    Released,
    Previous,
    HandedOver,
    Forgotten,
    ReleasedAll,
    Page,
    Checked,
    History,
    Opened,
    Session,
    Kept,
    Ended,
    Me,
    Cluster,
    Pending,
    Changed,
    Reset,
    Problem,
    Document,
    /// A body that is not JSON, such as a page, an event stream or metrics, with its media type.
    Text(&'static str),
}

/// All schemas that have a name in the `OpenAPI` document.
pub(in crate::server::http) const NAMED: [Schema; 25] = [
    Schema::Health,
    Schema::Acquired,
    Schema::SeedStatus,
    Schema::SeedReleased,
    Schema::Status,
    Schema::Granted,
    Schema::Released,
    Schema::Previous,
    Schema::HandedOver,
    Schema::Forgotten,
    Schema::ReleasedAll,
    Schema::Page,
    Schema::Checked,
    Schema::History,
    Schema::Opened,
    Schema::Session,
    Schema::Kept,
    Schema::Ended,
    Schema::Me,
    Schema::Cluster,
    Schema::Pending,
    Schema::Changed,
    Schema::Reset,
    Schema::Problem,
    Schema::Document,
];

/// Returns the schema of an object with these members; a name that ends with `?` is optional.
fn object(members: &[(&str, Value)]) -> Value {
    let bare = |name: &str| name.trim_end_matches('?').to_owned();
    let names = members.iter().map(|(name, _)| *name);
    let needed: Vec<_> = names.filter(|name| !name.ends_with('?')).collect();
    let properties: serde_json::Map<_, _> =
        members.iter().map(|(name, schema)| (bare(name), schema.clone())).collect();
    json!({ "type": "object", "required": needed, "properties": properties })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn time() -> Value {
    json!({ "type": ["string", "null"], "format": "date-time" })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn number_or_null() -> Value {
    json!({ "type": ["integer", "null"], "minimum": 0 })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn phase() -> Value {
    json!({ "type": ["string", "null"], "enum": ["free", "held", "grace", null] })
}

fn pair() -> Value {
    object(&[("name", text()), ("token", number())])
}

/// Returns the schema of what is remembered of a lock's name. All but the number of grants is
/// missing until a tenure sets a handover.
fn previous() -> Value {
    let ends = ["open", "released", "expired", "stolen", "session", "unknown"];
    object(&[
        ("seq", number()),
        ("token?", number()),
        ("client?", text()),
        ("at?", time()),
        ("end?", json!({ "type": "string", "enum": ends })),
        ("handover?", text()),
        ("counter?", number()),
    ])
}

/// Returns the schema of a time in which nothing is granted.
fn hold_off() -> Value {
    let causes = ["no_state", "restored", "recovered"];
    object(&[
        ("until", time()),
        ("left_ms", number()),
        ("because", json!({ "type": "string", "enum": causes })),
        ("detail", text()),
    ])
}

/// Returns the schema of one of several holders of a lock.
fn holder() -> Value {
    object(&[
        ("client", text()),
        ("token", number()),
        ("expires_in_ms", number_or_null()),
        ("holder_id", text()),
        ("seat?", number()),
        ("begins_in_ms?", number()),
        ("lasts?", text()),
    ])
}

/// Returns the schema of one place in the queue of a lock.
fn waiter() -> Value {
    let schema = |field: &WaiterField| match field.kind {
        FieldKind::Text => text(),
        FieldKind::Time => time(),
        FieldKind::Millis | FieldKind::Count => number(),
    };
    object(&WAITER_FIELDS.iter().map(|field| (field.name, schema(field))).collect::<Vec<_>>())
}

/// Returns the schema of a held lock's status.
fn status() -> Value {
    object(&[
        ("name", text()),
        ("holder", text()),
        ("expires_at?", time()),
        ("is_expired", flag()),
        ("grace_until?", time()),
        ("phase", phase()),
        ("mode?", json!({ "type": "string", "enum": ["exclusive", "shared", "seats"] })),
        ("max?", number()),
        ("seat?", number()),
        ("token?", number()),
        ("expires_in_ms?", number_or_null()),
        ("begins_in_ms?", number()),
        ("lasts?", text()),
        ("age_ms?", number_or_null()),
        ("acquired_at?", time()),
        ("held_ms?", number()),
        ("renewed_at?", time()),
        ("ttl_ms?", number()),
        ("grace_ms?", number()),
        ("holder_id?", text()),
        ("note?", text()),
        ("waiters?", list(&waiter())),
        ("holders?", list(&holder())),
        ("hold_off?", hold_off()),
        ("previous?", previous()),
    ])
}

fn granted() -> Value {
    object(&[
        ("name", text()),
        ("holder", text()),
        ("expires_at", time()),
        ("grace_until", time()),
        ("phase", phase()),
        ("token", number()),
        ("acquisition", number()),
        ("seat?", number()),
        ("expires_in_ms", number_or_null()),
        ("begins_in_ms?", number()),
        ("ttl_ms", number()),
        ("grace_ms", number()),
        ("renewed", flag()),
        ("previous?", previous()),
        ("current?", Schema::Status.reference()),
    ])
}

fn session(more: &[(&str, Value)]) -> Value {
    let mut members = vec![("session", number()), ("client", text())];
    members.push(("expires_in_ms", number_or_null()));
    members.extend([("ttl_ms", number()), ("grace_ms", number())]);
    members.extend(more.iter().cloned());
    object(&members)
}

fn checked() -> Value {
    let one = object(&[
        ("name", text()),
        ("token", number()),
        ("current", flag()),
        ("phase", phase()),
        ("current_token", number_or_null()),
    ]);
    json!({ "anyOf": [one, object(&[("checks", list(&one))])] })
}

fn cluster() -> Value {
    let node = object(&[
        ("id", number()),
        ("name", text()),
        ("address", text()),
        ("url", text()),
        ("role", text()),
        ("reachable", flag()),
        ("trouble", json!({ "type": ["string", "null"] })),
        ("term", number()),
        ("leader", number_or_null()),
        ("last_log", number()),
        ("committed", number()),
        ("applied", number()),
        ("snapshot", number()),
        ("heard_ms_ago", number_or_null()),
        ("lag", number_or_null()),
        ("sync_median_us", number_or_null()),
        ("sync_worst_us", number_or_null()),
        ("state", json!({ "type": ["string", "null"] })),
    ]);
    object(&[
        ("cluster", text()),
        ("asked", number()),
        ("leader", number_or_null()),
        ("elections", number()),
        ("elected_ms_ago", number_or_null()),
        ("hold_off?", hold_off()),
        ("nodes", list(&node)),
    ])
}

fn pending() -> Value {
    let request = object(&[
        ("place", number()),
        ("stage", json!({ "type": "string", "enum": ["queued", "forwarded", "replicating"] })),
        ("command", text()),
        ("name", json!({ "type": ["string", "null"] })),
        ("client", json!({ "type": ["string", "null"] })),
        ("age_ms", number()),
    ]);
    object(&[("asked", number()), ("leader", number_or_null()), ("pending", list(&request))])
}

fn problem() -> Value {
    object(&[
        ("type", text()),
        ("title", text()),
        ("status", number()),
        ("detail", text()),
        ("kind?", text()),
        ("reason?", text()),
        ("because?", text()),
        ("why?", text()),
        ("until?", time()),
        ("message?", text()),
        ("name?", text()),
        ("holder?", text()),
        ("token?", number()),
        ("request?", text()),
        ("request_id?", text()),
        ("waiting?", number()),
        ("expires_in_ms?", number()),
        ("expires_at?", time()),
        ("retry_after_ms?", number()),
        ("previous?", previous()),
    ])
}

impl Schema {
    /// Returns the name of the schema in the `OpenAPI` document.
    pub(in crate::server::http) const fn name(self) -> &'static str {
        match self {
            Self::Health => "Health",
            Self::Acquired => "Acquired",
            Self::SeedStatus => "SeedStatus",
            Self::SeedReleased => "SeedReleased",
            Self::Status => "Status",
            Self::Granted => "Granted",
            Self::Released => "Released",
            Self::Previous => "Previous",
            Self::HandedOver => "HandedOver",
            Self::Forgotten => "Forgotten",
            Self::ReleasedAll => "ReleasedAll",
            Self::Page => "Page",
            Self::Checked => "Checked",
            Self::History => "History",
            Self::Opened => "Opened",
            Self::Session => "Session",
            Self::Kept => "Kept",
            Self::Ended => "Ended",
            Self::Me => "Me",
            Self::Cluster => "Cluster",
            Self::Pending => "Pending",
            Self::Changed => "Changed",
            Self::Reset => "Reset",
            Self::Problem => "Problem",
            Self::Document => "Document",
            Self::Text(kind) => kind,
        }
    }

    /// Returns the media type of the response body.
    pub(in crate::server::http) const fn media(self) -> &'static str {
        match self {
            Self::Problem => "application/problem+json",
            Self::Text(kind) => kind,
            _ => "application/json",
        }
    }

    /// Returns the JSON Schema of the response body.
    pub(in crate::server::http) fn definition(self) -> Value {
        match self {
            Self::Health => object(&[("status", text())]),
            Self::Acquired => {
                object(&[("holder", text()), ("expires_at", time()), ("token", number())])
            }
            Self::SeedStatus => object(&[
                ("holder", text()),
                ("expires_at?", time()),
                ("is_expired", flag()),
                ("grace_until?", time()),
                ("token?", number()),
            ]),
            Self::SeedReleased => object(&[("released", flag())]),
            Self::Status => status(),
            Self::Granted => granted(),
            Self::Released => object(&[
                ("name", text()),
                ("released", flag()),
                ("left?", number()),
                ("current?", Self::Status.reference()),
            ]),
            Self::Previous => object(&[("name", text()), ("previous?", previous())]),
            Self::HandedOver => object(&[
                ("name", text()),
                ("handover", text()),
                ("counter", number()),
                ("current?", Self::Status.reference()),
            ]),
            Self::Forgotten => object(&[
                ("name", text()),
                ("remembered", flag()),
                ("current?", Self::Status.reference()),
            ]),
            Self::ReleasedAll => {
                object(&[("client", text()), ("holds", number()), ("waits", number())])
            }
            Self::Page => {
                let next = json!({ "type": ["string", "null"] });
                let locks = list(&Self::Status.reference());
                object(&[("locks", locks), ("next", next), ("age_ms?", number_or_null())])
            }
            Self::Checked => checked(),
            Self::History => {
                let tenure = object(&[
                    ("name", text()),
                    ("holder", text()),
                    ("token", number()),
                    ("held_ms", number()),
                    ("ended_ms_ago", number()),
                    ("end", text()),
                    ("by?", text()),
                    ("reason?", text()),
                    ("to?", text()),
                ]);
                object(&[("tenures", list(&tenure))])
            }
            Self::Opened => {
                let current = json!({ "anyOf": [Self::Session.reference(), { "type": "null" }] });
                session(&[("current?", current)])
            }
            Self::Session => session(&[
                ("held", list(&pair())),
                ("held_in_all", number()),
                ("waiting", number()),
            ]),
            Self::Kept => object(&[
                ("session", number()),
                ("expires_in_ms", number_or_null()),
                ("lost", list(&pair())),
            ]),
            Self::Ended => object(&[("session", number()), ("ended", flag())]),
            Self::Me => object(&[
                ("name", text()),
                ("client", json!({ "type": ["string", "null"] })),
                ("steal", flag()),
                ("cluster", flag()),
                ("locks", list(&text())),
                ("read_only", flag()),
                ("warning", json!({ "type": ["string", "null"] })),
                ("certificates", json!({ "type": "object" })),
                ("own_names", json!({ "type": ["string", "null"] })),
                ("server", text()),
                ("version", text()),
            ]),
            Self::Cluster => cluster(),
            Self::Pending => pending(),
            Self::Changed => object(&[("done", flag())]),
            Self::Reset => object(&[("holds", number()), ("waits", number())]),
            Self::Problem => problem(),
            Self::Document => json!({ "type": "object" }),
            Self::Text(_) => text(),
        }
    }

    /// Returns a reference to the schema by its name in the `OpenAPI` document.
    pub(in crate::server::http) fn reference(self) -> Value {
        match self {
            Self::Text(_) => text(),
            named => json!({ "$ref": format!("#/components/schemas/{}", named.name()) }),
        }
    }
}
