//! Comma-separated lists of the URLs of servers.

/// Returns the URLs of a comma-separated list, without duplicates.
pub(super) fn urls(list: &str) -> Vec<&str> {
    let mut urls: Vec<&str> = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// Whether the list `known` has all URLs of the list `url`.
pub(super) fn covers(known: &str, url: &str) -> bool {
    let plain = |url: &str| url.trim_end_matches('/').to_owned();
    let known: Vec<_> = urls(known).into_iter().map(plain).collect();
    let all = urls(url);
    !all.is_empty() && all.into_iter().all(|url| known.contains(&plain(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_covers_its_own_urls_only() {
        let known = "https://a:1,https://b:1/";
        for url in ["https://a:1", "https://b:1", "https://b:1,https://a:1/"] {
            assert!(covers(known, url), "{url}");
        }
        for url in ["https://a:2", "http://a:1", "https://a:1,https://c:1", "", "https://a:10"] {
            assert!(!covers(known, url), "{url}");
        }
    }
}
