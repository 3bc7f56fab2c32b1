//! `flannel`: runs another plugin, bridge by default, with the node's subnet of flanneld.
//! <https://github.com/flannel-io/cni-plugin>
//!
//! ADD makes the delegate's configuration out of its own and flanneld's file, keeps it, and runs the
//! delegate with it. The other operations run the delegate with what is kept.

mod conf;
mod kept;
mod subnet_env;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use self::kept::{Found, Kept};
use crate::cni::attachment::Key;
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::result::AddResult;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Code, Error, ErrorList, Result};
use crate::plugin::{Attachment, Call, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::delegation::{Delegate, Named};

pub use self::conf::Conf;
pub use self::conf::USUAL_IPAM;
pub use self::subnet_env::SubnetEnv;

/// The pause before flanneld's file is read again.
const PAUSE: Duration = Duration::from_millis(50);

/// The `flannel` plugin.
pub struct Flannel;

impl Plugin for Flannel {
    const NAME: &'static str = "flannel";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "runs bridge with the subnet that flanneld has for the node";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        // Between a boot and the start of flanneld its file is missing, and after another node was
        // given the node's subnet it is stale until flanneld writes it again.
        let end = cx.deadline().of_wait(conf.patience());
        let made = loop {
            match config_of_add(cx, conf) {
                Err(error) if error.code == Code::TRY_AGAIN && Instant::now() < end => (),
                made => break made?,
            }
            thread::sleep(PAUSE);
        };
        let inner = cx.with_config(&made);
        let delegate = delegate_of(&inner)?;
        delegate.validate(&inner)?;
        let kept = Kept(Path::new(&conf.data_dir));
        let earlier = kept.own_text(&at.key)?;
        transaction(|rb| {
            rb.undo("forget the configuration", || kept.restore(&at.key, earlier));
            kept.write(&at.key, &made.text)?;
            delegate.add(&inner, at, rb)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let kept = require_kept(conf, &at.key)?;
        let made = conf::with_result_of(cx.config, &kept)?;
        let inner = cx.with_config(&made);
        delegate_of(&inner)?.run(&inner, Call::Check(at))
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        let kept = Kept(Path::new(&conf.data_dir));
        match kept.find(&at.key)? {
            Found::Whole(config) => {
                let inner = cx.with_config(&config);
                delegate_of(&inner)?.run(&inner, Call::Del(at))?;
            }
            Found::Torn | Found::Nothing => {
                // A plugin of ours needs no more than the network's name.
                let made = conf::of_del(cx.config)?;
                let inner = cx.with_config(&made);
                match delegate_of(&inner) {
                    Ok(delegate) if delegate.is_ours() => delegate.run(&inner, Call::Del(at))?,
                    _ => (), // as the original: there is nothing to run another program with
                }
            }
        }
        // Not before: the original forgets it although its delegate has failed, and the next DEL
        // finds nothing to do.
        kept.remove(&at.key)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let made = config_of_add(cx, conf).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        let inner = cx.with_config(&made);
        delegate_of(&inner)?.run(&inner, Call::Status)
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let made = conf::of_del(cx.config)?;
        let inner = cx.with_config(&made);
        delegate_of(&inner)?.run(&inner, Call::Gc(valid))?;
        forget_stale(cx, conf, valid)
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let kept = require_kept(conf, &at.key)?;
        let made = conf::with_result_of(cx.config, &kept)?;
        let inner = cx.with_config(&made);
        delegate_of(&inner)?.repair(&inner, at, repairs)
    }
}

fn config_of_add(cx: &Context<'_>, conf: &Conf) -> Result<Config> {
    let env = SubnetEnv::read(Path::new(&conf.subnet_file))?;
    subnet_env::refuse_stale(cx.host()?, &env)?;
    conf::of_add(cx.config, conf, &env)
}

/// The plugin that a delegate's configuration names.
fn delegate_of(inner: &Context<'_>) -> Result<Delegate> {
    let name = inner.config.value.get("type").and_then(|name| name.as_str()).unwrap_or_default();
    Delegate::find(inner, &Named { path: "delegate.type", name, kind: Kind::Main })
}

fn require_kept(conf: &Conf, key: &Key) -> Result<Config> {
    match Kept(Path::new(&conf.data_dir)).find(key)? {
        Found::Whole(config) => Ok(config),
        Found::Torn | Found::Nothing => {
            let dir = &conf.data_dir;
            Err(Error::check(format!("no configuration of this attachment is kept in {dir}"))
                .with_details("was it attached by another plugin, or with another dataDir?"))
        }
    }
}

/// Removes the configurations of this network's attachments that are not valid.
fn forget_stale(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
    let kept = Kept(Path::new(&conf.data_dir));
    let mut errors = ErrorList::default();
    for own in kept.all()? {
        let key = Key::parse(cx.config.name.as_str(), &own.container_id, &own.ifname);
        let Ok(key) = key else { continue }; // not a file of ours
        if is_of(&kept::read(&own.path)?, cx.config) && valid.is_stale(&cx.config.name, &key) {
            errors.push(valid.remove(|| as_stale(Holder::of(&key)), || kept.remove(&key)));
        }
    }
    for id in kept.of_original()? {
        let is_its = is_of(&kept::read(&kept.original(&id))?, cx.config);
        if is_its && !valid.contains_container(id.as_str()) {
            let holder = || as_stale(Holder::of_container(id.as_str()));
            errors.push(valid.remove(holder, || kept.remove_original(&id)));
        }
    }
    errors.finish()
}

fn is_of(found: &Found, config: &Config) -> bool {
    matches!(found, Found::Whole(kept) if kept.name == config.name)
}

fn as_stale(holder: Holder) -> Stale {
    Stale { what: "kept configuration".to_owned(), holder, ..Stale::default() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
