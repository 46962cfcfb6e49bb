//! What can be asked: one table, from which the router and the document are made.

use super::app::App;
use super::call::{Answering, Call, Response};
use super::problem::Problem;
use super::schema::Schema;
use super::shape::{
    AFTER, CHECKED_NAME, CHECKED_TOKEN, CHECKS, CLIENT, CONSISTENCY, FRESH, GRACE, IDEMPOTENCY_KEY,
    IF_MATCH, LAST_EVENT_ID, LIMIT, MODE, NAME, NOTE, PREFIX, Param, REASON, SESSION, SESSION_ID,
    SINCE, TOKEN, TTL, WAIT,
};
use super::{
    admin, cluster, door, events, health, list, lock, metrics, openapi, page, seed, sessions, who,
};
use crate::access::{Grant, peers::Origin};
use crate::engine::Kind;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::routing::any;
use parking_lot::Mutex;
use std::future::ready;
use std::sync::Arc;

/// One path, and what can be done there.
pub(super) struct Route {
    /// As the document writes it.
    pub(super) path: &'static str,
    /// As the router matches it; `None`: it is a part of the route before.
    pub(super) pattern: Option<&'static str>,
    pub(super) acts: &'static [Act],
}

/// One method at a path.
pub(super) struct Act {
    pub(super) method: Method,
    pub(super) doc: Doc,
    /// Whether it may be asked without credentials: it says nothing of locks.
    pub(super) public: bool,
    run: fn(Call) -> Answering,
}

/// What the document says of an act.
pub(super) struct Doc {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// What is answered when all is well.
    pub(super) code: u16,
    pub(super) schema: Schema,
    /// What else is to be expected; all of them are problems.
    pub(super) problems: &'static [u16],
}

/// One method at a path.
pub(super) const fn act(method: Method, run: fn(Call) -> Answering, doc: Doc) -> Act {
    Act { method, doc, public: false, run }
}

impl Act {
    const fn public(mut self) -> Self {
        self.public = true;
        self
    }
}

/// What the document says of it.
pub(super) const fn doc(
    id: &'static str,
    summary: &'static str,
    params: &'static [Param],
    (code, schema): (u16, Schema),
    problems: &'static [u16],
) -> Doc {
    Doc { id, summary, params, code, schema, problems }
}

/// What acquires a lock, by either method.
const ACQUIRES: &[Param] = &[
    NAME,
    CLIENT,
    TTL,
    GRACE,
    MODE,
    NOTE,
    TOKEN,
    WAIT,
    FRESH,
    SESSION,
    REASON,
    IF_MATCH,
    IDEMPOTENCY_KEY,
];

/// What can go wrong with a lock that one wants.
const ACQUIRE_PROBLEMS: &[u16] = &[400, 403, 409, 410, 412, 415, 429, 503];

/// All of it.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/lock",
        pattern: Some("/lock"),
        acts: &[
            act(
                Method::GET,
                |call| Box::pin(seed::show(call)),
                doc("seedStatus", "The status of the lock 'default'.", &[], SEED_STATUS, &[400]),
            ),
            act(
                Method::POST,
                |call| Box::pin(seed::acquire(call)),
                doc(
                    "seedAcquire",
                    "Acquire or renew the lock 'default'.",
                    &[CLIENT, TTL],
                    (200, Schema::Acquired),
                    &[400, 409, 415, 429, 503],
                ),
            ),
            act(
                Method::DELETE,
                |call| Box::pin(seed::release(call)),
                doc(
                    "seedRelease",
                    "Release the lock 'default'.",
                    &[CLIENT],
                    (200, Schema::SeedReleased),
                    &[400, 403, 415],
                ),
            ),
        ],
    },
    Route {
        path: "/locks",
        pattern: Some("/locks"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(list::list(call)),
            doc(
                "list",
                "Locks that are held, in grace or waited for, by name.",
                &[PREFIX, AFTER, LIMIT, CONSISTENCY],
                (200, Schema::Page),
                &[400],
            ),
        )],
    },
    Route { path: "/locks/{name}", pattern: Some("/locks/{*name}"), acts: LOCK },
    // A part of the route before, which finds out by the path.
    Route { path: "/locks/{name}/steal", pattern: None, acts: STEAL },
    Route {
        path: "/check",
        pattern: Some("/check"),
        acts: &[act(
            Method::POST,
            |call| Box::pin(list::check(call)),
            doc(
                "check",
                "Whether tokens are current: for what a lock guards, before it accepts a change.",
                &[CHECKED_NAME, CHECKED_TOKEN, CHECKS],
                (200, Schema::Checked),
                &[400, 415],
            ),
        )],
    },
    Route {
        path: "/sessions",
        pattern: Some("/sessions"),
        acts: &[act(
            Method::POST,
            |call| Box::pin(sessions::open(call)),
            doc(
                "openSession",
                "Open a session: leases that hang on it are kept alive by one call.",
                &[CLIENT, TTL, GRACE, IDEMPOTENCY_KEY],
                (201, Schema::Opened),
                &[400, 415, 429, 503],
            ),
        )],
    },
    Route { path: "/sessions/{session}", pattern: Some("/sessions/{session}"), acts: SESSIONS },
    Route {
        path: "/sessions/{session}/keepalive",
        pattern: Some("/sessions/{session}/keepalive"),
        acts: &[act(
            Method::POST,
            |call| Box::pin(sessions::keep_alive(call)),
            doc(
                "keepAlive",
                "Keep a session alive with all that hangs on it, and hear what was taken from it.",
                &[SESSION_ID],
                (200, Schema::Kept),
                &[400, 410],
            ),
        )],
    },
    Route {
        path: "/events",
        pattern: Some("/events"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(events::stream(call)),
            doc(
                "events",
                "What happens, as it happens, as server-sent events.",
                &[PREFIX, SINCE, LAST_EVENT_ID],
                (200, Schema::Text("text/event-stream")),
                &[400, 429],
            ),
        )],
    },
    Route {
        path: "/history",
        pattern: Some("/history"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(list::history(call)),
            doc(
                "history",
                "Tenures that ended within the last hour, since the server began.",
                &[PREFIX],
                (200, Schema::History),
                &[400],
            ),
        )],
    },
    Route { path: "/reset", pattern: Some("/reset"), acts: admin::RESET },
    Route { path: "/backup", pattern: Some("/backup"), acts: admin::BACKUP },
    Route { path: "/metrics", pattern: Some("/metrics"), acts: METRICS },
    Route { path: "/cluster", pattern: Some("/cluster"), acts: cluster::SHOW },
    Route {
        path: "/cluster/transfer",
        pattern: Some("/cluster/transfer"),
        acts: cluster::TRANSFER,
    },
    Route {
        path: "/cluster/nodes/{node}",
        pattern: Some("/cluster/nodes/{node}"),
        acts: cluster::REMOVE,
    },
    Route {
        path: "/cluster/nodes/{node}/promote",
        pattern: Some("/cluster/nodes/{node}/promote"),
        acts: cluster::PROMOTE,
    },
    Route { path: "/", pattern: Some("/"), acts: PAGE },
    Route {
        path: "/me",
        pattern: Some("/me"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(page::me(call)),
            doc("me", "What the caller may do.", &[], (200, Schema::Me), &[400]),
        )],
    },
    Route {
        path: "/healthz",
        pattern: Some("/healthz"),
        acts: &[act(
            Method::GET,
            |_| Box::pin(ready(Ok(health::alive()))),
            doc("alive", "The server lives.", &[], (200, Schema::Health), &[]),
        )
        .public()],
    },
    Route {
        path: "/readyz",
        pattern: Some("/readyz"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(ready(health::ready(&call))),
            doc("ready", "The server grants locks.", &[], (200, Schema::Health), &[503]),
        )
        .public()],
    },
    Route {
        path: "/openapi.json",
        pattern: Some("/openapi.json"),
        acts: &[act(
            Method::GET,
            |call| Box::pin(openapi::show(call)),
            doc("document", "This document.", &[], (200, Schema::Document), &[]),
        )
        .public()],
    },
];

const SEED_STATUS: (u16, Schema) = (200, Schema::SeedStatus);

const LOCK: &[Act] = &[
    act(
        Method::GET,
        |call| Box::pin(lock::show(call)),
        doc(
            "status",
            "The status, also of a free lock.",
            &[NAME, CONSISTENCY],
            (200, Schema::Status),
            &[400],
        ),
    ),
    act(
        Method::POST,
        |call| Box::pin(lock::acquire(call)),
        doc(
            "acquire",
            "Acquire, or renew; with a token renew that tenure and nothing else.",
            ACQUIRES,
            (200, Schema::Granted),
            ACQUIRE_PROBLEMS,
        ),
    ),
    act(
        Method::PUT,
        |call| Box::pin(lock::acquire(call)),
        doc(
            "put",
            "The same as POST, also for names whose last part is 'steal'.",
            ACQUIRES,
            (200, Schema::Granted),
            ACQUIRE_PROBLEMS,
        ),
    ),
    act(
        Method::PATCH,
        |call| Box::pin(lock::renew(call)),
        doc(
            "renew",
            "Renew, and never acquire. What is not said stays as it is.",
            &[NAME, CLIENT, TTL, GRACE, NOTE, TOKEN, SESSION, IF_MATCH, IDEMPOTENCY_KEY],
            (200, Schema::Granted),
            ACQUIRE_PROBLEMS,
        ),
    ),
    act(
        Method::DELETE,
        |call| Box::pin(lock::release(call)),
        doc(
            "release",
            "Release; with a token that tenure and nothing newer.",
            &[NAME, CLIENT, TOKEN, IF_MATCH, IDEMPOTENCY_KEY],
            (200, Schema::Released),
            &[400, 403, 410, 412, 415, 503],
        ),
    ),
];

const STEAL: &[Act] = &[act(
    Method::POST,
    |call| Box::pin(lock::steal(call)),
    doc(
        "steal",
        "Take a live lock from its holder. Nobody may use it for 1 s, the thief neither.",
        &[NAME, CLIENT, REASON, TTL, GRACE, NOTE, SESSION, IDEMPOTENCY_KEY],
        (200, Schema::Granted),
        &[400, 403, 410, 415, 429, 503],
    ),
)];

const SESSIONS: &[Act] = &[
    act(
        Method::GET,
        |call| Box::pin(sessions::show(call)),
        doc(
            "session",
            "A session, and what hangs on it.",
            &[SESSION_ID],
            (200, Schema::Session),
            &[400, 403, 410],
        ),
    ),
    act(
        Method::DELETE,
        |call| Box::pin(sessions::end(call)),
        doc(
            "endSession",
            "End a session, and release all that hangs on it.",
            &[SESSION_ID],
            (200, Schema::Ended),
            &[400, 403, 410],
        ),
    ),
];

const METRICS: &[Act] = &[act(
    Method::GET,
    |call| Box::pin(metrics::show(call)),
    doc(
        "metrics",
        "Counts for Prometheus.",
        &[],
        (200, Schema::Text("text/plain; version=0.0.4; charset=utf-8")),
        &[403],
    ),
)];

const PAGE: &[Act] = &[act(
    Method::GET,
    |call| Box::pin(page::show(call)),
    doc(
        "page",
        "A page for people: what is held, live.",
        &[],
        (200, Schema::Text("text/html; charset=utf-8")),
        &[400],
    ),
)
.public()];

/// The router of the table.
pub(super) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    let mut first_act = 0;
    for route in ROUTES {
        let number = first_act;
        first_act += route.acts.len();
        let Some(pattern) = route.pattern else { continue };
        let app = Arc::clone(app);
        let handler = move |request: Request| answer(route, number, Arc::clone(&app), request);
        router = router.route(pattern, any(handler));
    }
    for (pattern, act) in door::ACTS {
        let app = Arc::clone(app);
        let handler = move |request: Request| async move {
            if request.method() != act.method {
                let given = request.method().as_str();
                return Problem::wrong_method(given, act.method.as_str()).into_response();
            }
            run(act, app, request).await
        };
        router = router.route(pattern, any(handler));
    }
    router.fallback(|request: Request| async move {
        Problem::no_such_path(request.uri().path()).into_response()
    })
}

/// Answers a request; `first` is the number of the route's first act in the table.
async fn answer(route: &'static Route, first: usize, app: Arc<App>, request: Request) -> Response {
    let method = match *request.method() {
        Method::HEAD => &Method::GET,
        _ => request.method(),
    };
    let steals = *method == Method::POST && lock::steal_of(request.uri().path()).is_some();
    let (acts, first) = match route.acts.len() {
        lock_acts if steals => (STEAL, first + lock_acts),
        _ => (route.acts, first),
    };
    let Some(place) = acts.iter().position(|act| act.method == *method) else {
        let allowed: Vec<&str> = acts.iter().map(|act| act.method.as_str()).collect();
        return Problem::wrong_method(method.as_str(), &allowed.join(", ")).into_response();
    };
    let response = run(&acts[place], Arc::clone(&app), request).await;
    app.requests.count(first + place, response.status());
    response
}

async fn run(act: &'static Act, app: Arc<App>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let origin = head.extensions.get::<Arc<Origin>>();
    let Some(_counted) = origin.and_then(|origin| origin.peer.ask()) else {
        let detail = "too many requests of this address wait for an answer; try again later";
        return Problem::plain(StatusCode::TOO_MANY_REQUESTS, detail).into_response();
    };
    if act.method != Method::GET && is_of_another_site(&head.headers) {
        let detail = "a page of another site may not act here; open this server's own page";
        return Problem::of(Kind::Denied, detail).into_response();
    }
    let certified = origin.and_then(|origin| origin.certified.as_ref());
    let grant = match who::grant_of(&app.gate, &head.headers, certified) {
        Ok(grant) => grant,
        Err(_) if act.public => Arc::new(Grant::nothing()),
        Err(problem) => return problem.into_response(),
    };
    match (act.run)(Call { app, grant, act, head, body: Mutex::new(body) }).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

/// Whether a browser says that the page of another site has made it ask. A browser may reach
/// what its user may reach, a server on loopback for instance; such a page must not use that.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}
