//! The parameters of requests: their names, formats and descriptions.

use crate::engine::values::details::{HANDOVER_BYTES_MAX, NOTE_BYTES_MAX};
use crate::engine::values::lease::{Seats, TOKEN_MAX};
use crate::engine::values::name::{CLIENT_BYTES_MAX, NAME_BYTES_MAX};
use serde_json::{Value, json};

/// One parameter of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::server::http) struct Param {
    pub(in crate::server::http) name: &'static str,
    pub(in crate::server::http) place: ParamPlace,
    pub(in crate::server::http) shape: ParamShape,
    pub(in crate::server::http) needed: bool,
    pub(in crate::server::http) what: &'static str,
}

/// The part of a request that carries a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server::http) enum ParamPlace {
    /// A segment of the URL path.
    Path,
    /// The query of the URL or the body of the request, whichever the client chooses.
    Option,
    /// The query of the URL only.
    Query,
    /// The headers of the request.
    Header,
}

/// The format of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server::http) enum ParamShape {
    Name,
    Client,
    /// A duration such as `30s` or `1m30s`.
    Duration,
    Mode,
    Seats,
    Note,
    Reason,
    Token,
    Acquisition,
    Session,
    Flag,
    Count,
    Text,
    /// A fencing token as an entity tag, such as `"7"`.
    Tag,
    RequestId,
    /// Pairs of a lock's name and a fencing token, which only a JSON body can hold.
    Pairs,
    Consistency,
    Handover,
    /// The number of a handover within its tenure.
    Counter,
}

/// The format of durations such as `1m30s`, as a regular expression.
const DURATION: &str = r"^([0-9]*\.?[0-9]+(h|m|s|ms))+$";

impl ParamShape {
    /// Returns the JSON Schema of the parameter's value.
    pub(in crate::server::http) fn schema(self) -> Value {
        let text = |max: usize| json!({ "type": "string", "minLength": 1, "maxLength": max });
        match self {
            Self::Name => {
                json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
                    "example": "team/build" })
            }
            Self::Client => {
                json!({ "type": "string", "minLength": 1, "maxLength": CLIENT_BYTES_MAX,
                    "example": "laptop1" })
            }
            Self::Duration => json!({ "type": "string", "pattern": DURATION, "example": "30s" }),
            Self::Mode => json!({ "type": "string", "enum": ["exclusive", "shared"] }),
            Self::Seats => {
                json!({ "type": "integer", "minimum": Seats::MIN, "maximum": Seats::MAX })
            }
            Self::Note => json!({ "type": "string", "maxLength": NOTE_BYTES_MAX }),
            Self::Reason => text(NOTE_BYTES_MAX),
            Self::Token | Self::Session => {
                json!({ "type": "integer", "minimum": 1, "maximum": TOKEN_MAX })
            }
            Self::Handover => json!({ "type": "string", "maxLength": HANDOVER_BYTES_MAX }),
            Self::Counter => json!({ "type": "integer", "minimum": 0, "maximum": TOKEN_MAX }),
            Self::Acquisition => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Count => json!({ "type": "integer", "minimum": 1 }),
            Self::Text => json!({ "type": "string", "maxLength": NAME_BYTES_MAX }),
            Self::Tag => json!({ "type": "string", "example": "\"7\"" }),
            Self::RequestId => text(engine::values::details::REQUEST_KEY_BYTES_MAX),
            Self::Consistency => json!({ "enum": ["linearizable", "stale", "local"] }),
            Self::Pairs => json!({
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "token"],
                    "additionalProperties": false,
                    "properties": {
                        "name": Self::Name.schema(),
                        "token": Self::Token.schema(),
                    },
                },
            }),
        }
    }
}

const fn option(name: &'static str, shape: ParamShape, what: &'static str) -> Param {
    Param { name, place: ParamPlace::Option, shape, needed: false, what }
}

pub(in crate::server::http) const NAME: Param = Param {
    name: "name",
    place: ParamPlace::Path,
    shape: ParamShape::Name,
    needed: true,
    what: "The lock. Its parts may be separated by `/` or `%2F`.",
};
pub(in crate::server::http) const CLIENT: Param = option(
    "client",
    ParamShape::Client,
    "Who asks. May be left out where the credentials are for one client only.",
);
pub(in crate::server::http) const TTL: Param =
    option("ttl", ParamShape::Duration, "How long the lease lasts unrenewed: 1 s to 24 h.");
pub(in crate::server::http) const GRACE: Param = option(
    "grace",
    ParamShape::Duration,
    "How long after that only its holder may take it back: 0 to 24 h.",
);
pub(in crate::server::http) const MODE: Param =
    option("mode", ParamShape::Mode, "Alone (the default), or with others.");
pub(in crate::server::http) const MAX: Param = option(
    "max",
    ParamShape::Seats,
    "How many may hold the lock at the same time, each in a seat of its own; instead of `mode`.",
);
pub(in crate::server::http) const NOTE: Param =
    option("note", ParamShape::Note, "Note shown to clients that find the lock held.");
pub(in crate::server::http) const TOKEN: Param =
    option("token", ParamShape::Token, "The tenure that is meant; the same as If-Match.");
pub(in crate::server::http) const ACQUISITION: Param = option(
    "acquisition",
    ParamShape::Acquisition,
    "The acquire that the release ends, by `acquisition` of its answer: refused once the client \
     has acquired the lock again since.",
);
pub(in crate::server::http) const WAIT: Param = option(
    "wait",
    ParamShape::Duration,
    "Wait in the queue for so long, 24 h at most, while the request is open. With an \
     Idempotency-Key the place is kept for 30 s after the connection is lost.",
);
pub(in crate::server::http) const REENTRANT: Param = option(
    "reentrant",
    ParamShape::Flag,
    "Renew the lease if the client itself holds the lock, instead of being refused.",
);
pub(in crate::server::http) const SESSION: Param = option(
    "session",
    ParamShape::Session,
    "The session that the lease hangs on, instead of a ttl.",
);
pub(in crate::server::http) const REMEMBER: Param = option(
    "remember",
    ParamShape::Flag,
    "Remember the name beyond this tenure, so that its tenures may set handovers.",
);
pub(in crate::server::http) const REMEMBERED: Param = Param {
    name: "remembered",
    place: ParamPlace::Query,
    shape: ParamShape::Flag,
    needed: false,
    what: "The names that are remembered, such as those of guarded folders, also of free locks; no \
           others.",
};
pub(in crate::server::http) const NOW: Param = option(
    "now",
    ParamShape::Flag,
    "Do not wait for the holder of a lock whose name is remembered, which may not hear of it.",
);
pub(in crate::server::http) const HANDOVER: Param = option(
    "handover",
    ParamShape::Handover,
    "A text for the tenures after this one; with `counter` and the token of the tenure.",
);
pub(in crate::server::http) const COUNTER: Param = option(
    "counter",
    ParamShape::Counter,
    "The number of the handover in its tenure: refused unless it is above the last one.",
);
pub(in crate::server::http) const REASON: Param =
    option("reason", ParamShape::Reason, "Why, for the holder and the audit log; must be there.");
pub(in crate::server::http) const KEEP: Param =
    option("keep", ParamShape::Text, "Of all but these clients and their users, by commas.");
pub(in crate::server::http) const OF: Param =
    option("of", ParamShape::Client, "Of this client and its users.");
pub(in crate::server::http) const ALL: Param = option("all", ParamShape::Flag, "Of everybody.");
pub(in crate::server::http) const CHECKS: Param =
    option("checks", ParamShape::Pairs, "Several names and tokens at once, 1,000 at most.");
pub(in crate::server::http) const CHECKED_NAME: Param =
    option("name", ParamShape::Name, "The lock.");
pub(in crate::server::http) const CHECKED_TOKEN: Param =
    option("token", ParamShape::Token, "The token to check.");
pub(in crate::server::http) const PREFIX: Param = Param {
    name: "prefix",
    place: ParamPlace::Query,
    shape: ParamShape::Text,
    needed: false,
    what: "Only locks whose names begin with this.",
};
pub(in crate::server::http) const AFTER: Param = Param {
    name: "after",
    place: ParamPlace::Query,
    shape: ParamShape::Name,
    needed: false,
    what: "Only locks behind this one: `next` of the page before.",
};
pub(in crate::server::http) const LIMIT: Param = Param {
    name: "limit",
    place: ParamPlace::Query,
    shape: ParamShape::Count,
    needed: false,
    what: "At most so many, 1,000 at most and by default.",
};
pub(in crate::server::http) const CONSISTENCY: Param = Param {
    name: "consistency",
    place: ParamPlace::Query,
    shape: ParamShape::Consistency,
    needed: false,
    what: "`stale`: this node's own state, at once, however old; `age_ms` says how old at \
           most. `local` is the same.",
};
pub(in crate::server::http) const SINCE: Param = Param {
    name: "since",
    place: ParamPlace::Query,
    shape: ParamShape::Text,
    needed: false,
    what: "The id of the last event seen, as in Last-Event-ID; or the number of the first event.",
};
pub(in crate::server::http) const IF_MATCH: Param = Param {
    name: "If-Match",
    place: ParamPlace::Header,
    shape: ParamShape::Tag,
    needed: false,
    what: "The token of the tenure that is meant, in quotes; `*` is any.",
};
pub(in crate::server::http) const IDEMPOTENCY_KEY: Param = Param {
    name: "Idempotency-Key",
    place: ParamPlace::Header,
    shape: ParamShape::RequestId,
    needed: false,
    what: "A key of this request, of your choosing. Repeating the request has no second effect and \
           gets the first answer; another request under the same key is refused (422). An acquire \
           that is refused (409) stays refused under its key.",
};
pub(in crate::server::http) const LAST_EVENT_ID: Param = Param {
    name: "Last-Event-ID",
    place: ParamPlace::Header,
    shape: ParamShape::Text,
    needed: false,
    what: "The id of the last event seen: what came after it comes first.",
};
pub(in crate::server::http) const SESSION_ID: Param = Param {
    name: "session",
    place: ParamPlace::Path,
    shape: ParamShape::Session,
    needed: true,
    what: "The session.",
};
pub(in crate::server::http) const NODE_ID: Param = Param {
    name: "node",
    place: ParamPlace::Path,
    shape: ParamShape::Session,
    needed: true,
    what: "The number of the node.",
};
pub(in crate::server::http) const TO: Param = option(
    "to",
    ParamShape::Session,
    "The number of the node that is to lead; the best if not said.",
);
pub(in crate::server::http) const FORCE: Param =
    option("force", ParamShape::Flag, "Also when that makes an even number of voters.");
pub(in crate::server::http) const STATE: Param = Param {
    name: "state",
    place: ParamPlace::Query,
    shape: ParamShape::Flag,
    needed: false,
    what: "Also a sum of all that each node knows, which costs it a moment.",
};
