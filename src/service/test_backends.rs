//! A part of the lock services that tests make around an engine.

/// Implements all of [`LockService`](super::LockService) but `submit` and `view` for a value whose
/// field `engine` is a local backend. It stands within the `impl` block.
macro_rules! forward_to_engine {
    () => {
        fn submit_checked(
            self: std::sync::Arc<Self>,
            command: $crate::engine::Command,
            check: Option<$crate::service::ParentCheck>,
        ) -> $crate::service::Call<$crate::engine::Answer> {
            $crate::service::submit_in_steps(self, command, check)
        }

        fn list(
            &self,
            names: $crate::service::ListedNames,
            query: $crate::service::List,
        ) -> $crate::service::Call<$crate::service::ListPage<$crate::engine::LockView>> {
            self.engine.list(names, query)
        }

        fn children(
            &self,
            query: $crate::service::Children,
        ) -> $crate::service::Call<$crate::service::ListPage<$crate::engine::Child>> {
            self.engine.children(query)
        }

        fn subscribe(&self, since: Option<u64>) -> $crate::service::event_log::EventWatch {
            self.engine.subscribe(since)
        }

        fn next_event(&self) -> u64 {
            self.engine.next_event()
        }

        fn now(&self) -> $crate::time::Time {
            self.engine.now()
        }

        fn wall(&self, at: $crate::time::Time) -> $crate::time::Wall {
            self.engine.wall(at)
        }
    };
}

/// Implements the status and the stale reads of a lock service of a test.
macro_rules! forward_status_to_engine {
    ($service:ty) => {
        impl $crate::service::paging::StaleReads for $service {}

        impl $crate::service::BackendStatus for $service {
            fn about(&self) -> $crate::service::About {
                self.engine.about()
            }

            fn counts(&self) -> Vec<$crate::service::counters::Count> {
                self.engine.counts()
            }
        }
    };
}

pub(crate) use {forward_status_to_engine, forward_to_engine};
