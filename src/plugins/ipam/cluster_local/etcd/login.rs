//! User, password, and the token that the store exchanges them for.

use super::reply::{TokenReply, decode};
use super::request::Request;

/// A user of the store.
#[derive(Clone)]
pub struct Login {
    user: String,
    password: String,
    token: Option<String>,
    /// Whether a request with the current token was accepted.
    was_accepted: bool,
}

/// The password and the token are not for logs.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// A user who has no token yet.
    pub fn new(user: String, password: String) -> Login {
        Login { user, password, token: None, was_accepted: false }
    }

    /// The current token.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The request for a token.
    pub fn request(&self) -> Request {
        Request::authenticate(&self.user, &self.password)
    }

    /// Handles the reply to it. The token becomes a part of a header.
    pub fn replied(&mut self, body: &[u8]) -> Result<(), String> {
        let reply: TokenReply = decode(body)?;
        let is_visible = reply.token.bytes().all(|byte| byte.is_ascii_graphic());
        if reply.token.is_empty() || !is_visible {
            return Err("the response has no valid token".into());
        }
        self.token = Some(reply.token);
        self.was_accepted = false;
        Ok(())
    }

    /// A request with the token was accepted.
    pub fn accepted(&mut self) {
        self.was_accepted = true;
    }

    /// The token is of no use any more.
    pub fn forget_token(&mut self) {
        self.token = None;
    }

    /// A request was refused for its token. Whether a new token may help: it does once after each
    /// token that was good before, and for a token that never was it does not.
    pub fn may_retry(&mut self) -> bool {
        self.token = None;
        std::mem::take(&mut self.was_accepted)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_good_is_renewed_once() {
        let mut login = Login::new("u".into(), "secret".into());
        login.replied(br#"{"header":{},"token":"abc.7"}"#).unwrap();
        assert_eq!(login.token(), Some("abc.7"));
        assert!(!login.may_retry(), "it was never accepted");
        login.replied(br#"{"token":"abc.8"}"#).unwrap();
        login.accepted();
        assert!(login.may_retry() && login.token().is_none());
        assert!(!login.may_retry());
        assert!(!format!("{login:?}").contains("secret"));
    }

    #[test]
    fn a_token_that_would_end_a_header_is_refused() {
        let mut login = Login::new("u".into(), "p".into());
        for body in [r#"{"token":"a\r\nb"}"#, r#"{"token":""}"#, "{}", r#"{"token":"a b"}"#] {
            assert!(login.replied(body.as_bytes()).is_err(), "{body}");
        }
    }
}
