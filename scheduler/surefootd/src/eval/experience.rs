//! What Model-C experienced in the runs of an evaluation, a file a run: for training it in closed loop (docs/worlds.md).

use super::journal::Case;
use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::files::write_whole;
use crate::stage::models::Shared;
use std::path::{Path, PathBuf};
use surefoot_learn::Bundle;
use surefoot_policy::{learns, BundleModels, Family};

/// OSML+'s models, of which the policy has one handle and the evaluation another.
pub type Pupil = Shared<BundleModels>;

/// Whether a policy teaches OSML+'s Model-C.
pub fn is_taught(policy: &str) -> bool {
    learns(policy) == Some(Family::OsmlPlus)
}

/// Where experience is kept.
pub struct Kept<'a> {
    folder: &'a Path,
}

impl<'a> Kept<'a> {
    /// # Errors
    /// [`Error::BadInput`] where no run would have any.
    pub fn new(folder: &'a Path, args: &cli::Eval) -> Result<Self> {
        if !args.policies.iter().any(|p| is_taught(p)) {
            return Err(Error::BadInput(
                "--experience: no policy of --policies teaches OSML+'s Model-C. Name osml-plus there, or leave --experience out".into(),
            ));
        }
        if let Some(harm) = args.harm.filter(|h| matches!(h, cli::Harm::NoModels | cli::Harm::NoC)) {
            let harm = super::what::name(harm).unwrap_or_default();
            return Err(Error::BadInput(format!("--experience: with --harm {harm} there is no Model-C to teach. Leave one of them out")));
        }
        Ok(Kept { folder })
    }

    fn file(&self, (workload, policy, seed): &Case) -> PathBuf {
        self.folder.join(format!("{workload}--{policy}--{seed}.safetensors"))
    }

    /// That runs which are done have their file, and that no older file is replaced without a word.
    ///
    /// # Errors
    /// [`Error::BadInput`] names the file.
    pub fn check<'c>(&self, cases: impl Iterator<Item = &'c Case>, done: impl Fn(&Case) -> bool, overwrite: bool) -> Result<()> {
        for case in cases.filter(|c| is_taught(&c.1)) {
            let file = self.file(case);
            let there = file.symlink_metadata().is_ok();
            if done(case) && !there {
                return Err(Error::BadInput(format!(
                    "--experience {}: is missing, and its run is done already. Give the folder that the interrupted eval had, or remove \
                     what is left of it in --out",
                    file.display()
                )));
            }
            if there && !done(case) && !overwrite {
                return Err(Error::BadInput(format!(
                    "--experience {}: is there already. Give --overwrite to replace that, or another folder",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::Failed`] names the file.
    pub fn write(&self, case: &Case, models: &Pupil, bundle: &Bundle) -> Result<()> {
        write_whole(&self.file(case), &models.agent(|c| c.experience(&bundle.digest)))
    }
}
