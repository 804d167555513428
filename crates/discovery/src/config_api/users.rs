//! The files of tokens and roles. They are read again when they change; a file that cannot be used changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use configapi::users::{Roles, Tokens, UserRules, Users};
use net::watch::{FilePolling, PolledFiles};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::files::ApiFiles;
use crate::args::config_api::ConfigApiFlags;

/// A file is used when it was the same twice: it may be written in parts.
const POLLING: FilePolling = FilePolling { period: Duration::from_secs(1), settle: Duration::from_millis(200) };

/// The paths of both files.
#[derive(Clone, Debug)]
struct UserFiles {
    tokens: PathBuf,
    roles: Option<PathBuf>,
}

/// What the files have, or why they cannot be read.
type UserTexts = Result<(String, Option<String>), String>;

/// Reads the files and follows them until stopped. Makes the first token if it is missing.
pub(super) fn follow(flags: &ConfigApiFlags, files: &ApiFiles, stop: CancellationToken) -> Result<Arc<Users>> {
    files.make_token()?;
    let paths = UserFiles { tokens: files.token_file(), roles: flags.roles_file.clone() };
    let texts = paths.read();
    let rules = paths.rules(&texts)?;
    let users = Arc::new(Users::new(rules));
    let reader = paths.clone();
    let polled = PolledFiles::new(POLLING, move || reader.read()).after(texts);
    tokio::spawn(stop.run_until_cancelled_owned(replace(polled, paths, users.clone())));
    Ok(users)
}

async fn replace(mut polled: PolledFiles<UserTexts>, paths: UserFiles, users: Arc<Users>) {
    while let Some(texts) = polled.changed().await {
        match paths.rules(texts) {
            Ok(rules) => {
                users.replace(rules);
                info!(tokens = %paths.tokens.display(), "read the users of the configuration API again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                error!(error, "could not use changed users of the configuration API; the known ones stay valid");
            }
        }
    }
}

impl UserFiles {
    fn read(&self) -> UserTexts {
        let text = |path: &Path| {
            fs::read_to_string(path).map_err(|error| format!("could not read {}: {error}", path.display()))
        };
        Ok((text(&self.tokens)?, self.roles.as_deref().map(text).transpose()?))
    }

    fn rules(&self, texts: &UserTexts) -> Result<UserRules> {
        let (tokens, roles) = texts.as_ref().map_err(|reason| anyhow!(reason.clone()))?;
        let tokens = Tokens::parse(tokens).with_context(|| format!("could not use {}", self.tokens.display()))?;
        let roles = match (&self.roles, roles) {
            (Some(path), Some(text)) => {
                Roles::parse(text).with_context(|| format!("could not use {}", path.display()))?
            }
            _ => Roles::default(),
        };
        Ok(UserRules { tokens, roles })
    }
}
