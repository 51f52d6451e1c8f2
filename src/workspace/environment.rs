//! What a process in the workspace is given of the executor's own environment: everything but what looks like a credential (spec executor
//! 2.3).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Names of files that hold credentials: the name alone gives nothing away, and programs need it.
const POINTERS: [&str; 13] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "KUBECONFIG",
    "DOCKER_CONFIG",
    "NETRC",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "CLOUDSDK_CONFIG",
    "SSH_ASKPASS",
    "GIT_ASKPASS",
    "XDG_RUNTIME_DIR",
    "PGPASSFILE",
    "PGSERVICEFILE",
];

/// Names that are credentials by themselves.
const NAMES: [&str; 20] = [
    "PASSWORD",
    "TOKEN",
    "API_KEY",
    "SECRET_KEY",
    "SECRET",
    "KEY",
    "AUTH",
    "DATABASE_URL",
    "SSH_AUTH_SOCK",
    "PGPASSWORD",
    "MYSQL_PWD",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "OPENROUTER_API_KEY",
    "AWS_SESSION_TOKEN",
    "NPM_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "DAX_API_KEY",
];

/// Endings of names that are credentials.
const ENDINGS: [&str; 11] =
    ["_KEY", "_KEY_ID", "_PAT", "_PWD", "_JWT", "_CREDENTIALS", "_AUTH", "_TOKEN", "_SECRET", "_PASSWORD", "_API_KEY"];

/// The variables a process is started with; its own environment is never inherited beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// This process's environment without what looks like a credential, except the names in `pass_env`.
    pub fn inherit(pass_env: &[String]) -> Self {
        Self::scrub(std::env::vars_os(), pass_env)
    }

    /// `variables` without what looks like a credential, except the names in `pass_env`, compared exactly.
    pub fn scrub(variables: impl IntoIterator<Item = (OsString, OsString)>, pass_env: &[String]) -> Self {
        let passed = |name: &OsStr| pass_env.iter().any(|passed| name == passed.as_str());
        Self(variables.into_iter().filter(|(name, value)| passed(name) || !is_credential(name, value)).collect())
    }

    /// The variables, in the order they were in.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The names of a comma list as `--pass-env` takes it: blanks are dropped, and a name with `=` or white space in it is refused.
    pub fn names(list: &str) -> Result<Vec<String>, BadName> {
        list.split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| match name.contains(['=', ' ', '\t']) {
                true => Err(BadName(name.to_owned())),
                false => Ok(name.to_owned()),
            })
            .collect()
    }
}

/// Why a text is no variable's name. Shows the part before an equals sign alone: what stands behind it may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct BadName(String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once('=') {
            Some((name, _)) => write!(f, "give the name {name:?} alone, without a value"),
            None => write!(f, "{:?} is no variable's name; names are set apart by commas", self.0),
        }
    }
}

impl fmt::Debug for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BadName {}

/// Whether a variable looks like a credential. Names are compared in upper case.
pub fn is_credential(name: &OsStr, value: &OsStr) -> bool {
    let name = name.as_bytes().to_ascii_uppercase();
    let is = |known: &str| known.as_bytes() == name;
    if POINTERS.iter().any(|known| is(known)) {
        return false;
    }
    NAMES.iter().any(|known| is(known))
        || ENDINGS.iter().any(|ending| name.ends_with(ending.as_bytes()))
        || [&b"PASSWORD"[..], b"SECRET"].iter().any(|part| memchr::memmem::find(&name, part).is_some())
        || has_password(value.as_bytes())
}

/// Whether a text holds a URL with a password: `://user:password@`, where the user may be missing.
fn has_password(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, b"://").any(|at| {
        let rest = text.get(at + 3..).unwrap_or_default();
        let Some(colon) = rest.iter().position(|byte| b"/@ :".contains(byte)) else { return false };
        if rest.get(colon) != Some(&b':') {
            return false;
        }
        let secret = rest.get(colon + 1..).unwrap_or_default();
        let end = secret.iter().position(|byte| b"/@ ".contains(byte));
        end.is_some_and(|end| end > 0 && secret.get(end) == Some(&b'@'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str, value: &str) -> bool {
        Environment::scrub([(name.into(), value.into())], &[]).get(name).is_some()
    }

    #[test]
    fn what_looks_like_a_credential_is_taken_out() {
        for name in NAMES {
            assert!(!kept(name, "x"), "{name}");
        }
        for name in [
            "token",
            "Api_Key",
            "DEPLOY_KEY",
            "AWS_ACCESS_KEY_ID",
            "GITLAB_PAT",
            "DB_PWD",
            "MY_JWT",
            "X_CREDENTIALS",
            "NPM_AUTH",
            "SOME_TOKEN",
            "CLIENT_SECRET",
            "ROOT_PASSWORD",
            "my_api_key",
            "MYPASSWORDS",
            "SECRETS_DIR",
        ] {
            assert!(!kept(name, "x"), "{name}");
        }
        for name in POINTERS {
            assert!(kept(name, "x") && kept(&name.to_lowercase(), "https://u:p@host"), "{name}");
        }
        for name in ["PATH", "HOME", "KEYBOARD", "TOKENS", "MONKEY", "AUTHOR", "PATTERN", "TERM", "LANG"] {
            assert!(kept(name, "x"), "{name}");
        }
    }

    #[test]
    fn a_url_with_a_password_is_a_credential_whatever_its_name() {
        for (value, keeps) in [
            ("postgres://user:secret@host/db", false),
            ("see https://u:p@host and more", false),
            ("first://plain then redis://u:p@h", false),
            ("https://user@host/", true),
            ("https://user:@host/", true),
            ("redis://:p@host/", false),
            ("https://host:8080/a@b", true),
            ("https://host/path:x@y", true),
            ("https://a b:c@host", true),
            ("a:b@c", true),
            ("https://user:p", true),
        ] {
            assert_eq!(kept("PLAIN", value), keeps, "{value}");
        }
    }

    #[test]
    fn a_name_that_is_passed_stays() {
        let pass = Environment::names(" NPM_TOKEN ,, X ").unwrap();
        assert_eq!(pass, ["NPM_TOKEN", "X"]);
        let variables = [("NPM_TOKEN", "t"), ("GH_TOKEN", "t")].map(|(name, value)| (name.into(), value.into()));
        let environment = Environment::scrub(variables, &pass);
        assert_eq!(environment.iter().collect::<Vec<_>>(), [(OsStr::new("NPM_TOKEN"), OsStr::new("t"))]);
    }

    #[test]
    fn a_list_of_names_holds_names_alone_and_an_error_hides_the_value() {
        for list in ["A=hush", "A B", "A,B\tC"] {
            let error = Environment::names(list).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
        assert_eq!(Environment::names("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_value_that_is_not_utf8_is_kept_as_it_is() {
        let value = OsStr::from_bytes(b"\xff");
        let environment = Environment::scrub([("X".into(), value.into())], &[]);
        assert_eq!(environment.get("X"), Some(value));
    }
}
