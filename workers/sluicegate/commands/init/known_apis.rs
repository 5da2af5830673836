//! The APIs that Sluicegate knows, for `init --api`.

use config::{ApiPlan, ApiProfile, closest};

/// A known API, and the plan whose limits are written.
pub struct KnownApi {
    profile: ApiProfile,
    plan: ApiPlan,
}

impl KnownApi {
    /// Returns the API called `name` with its plan, or the default plan.
    ///
    /// # Errors
    /// A message with the known names.
    pub fn find(name: &str, plan: Option<&str>) -> Result<Self, String> {
        let Some(profile) = ApiProfile::find(name) else {
            let meant = closest(name, ApiProfile::names());
            let hint = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            return Err(format!(
                "--api: {name:?} is not a known API{hint}\n{}",
                list()
            ));
        };
        match profile.plan(plan).cloned() {
            Some(plan) => Ok(Self { profile, plan }),
            None => {
                let wanted = plan.unwrap_or_default();
                let name = |plan: &ApiPlan| format!("  {:<20} {}", plan.name, plan.note);
                let plans: Vec<String> = profile.plans.iter().map(name).collect();
                let plans = plans.join("\n");
                Err(format!(
                    "--plan: {} has no plan {wanted:?}; its plans are\n{plans}",
                    profile.title
                ))
            }
        }
    }

    /// Describes the limits.
    pub fn describe(&self) -> String {
        format!(
            "the limits of {}, plan {}",
            self.profile.title, self.plan.name
        )
    }

    /// Returns true if a limit counts units of cost.
    pub fn counts_cost(&self) -> bool {
        (self.plan.limits.iter()).any(|limit| limit.contains("unit: cost"))
    }

    /// Returns true if answers report what a call cost.
    pub fn reports_cost(&self) -> bool {
        !self.profile.rules.cost.is_empty()
    }

    /// Returns the section `rate-limiter`, with its sources.
    pub fn section(&self) -> String {
        let ApiProfile {
            title,
            sources,
            checked,
            ..
        } = &self.profile;
        let mut text = format!(
            "# {title}, plan {}, read on {checked} from\n",
            self.plan.name
        );
        for source in sources {
            text.push_str(&format!("#   {source}\n"));
        }
        if !self.plan.note.is_empty() {
            text.push_str(&format!("# {}\n", self.plan.note));
        }
        text.push_str("rate-limiter:\n");
        text.push_str("  limits:    # all must admit a job; a denied job is charged nowhere\n");
        for limit in &self.plan.limits {
            text.push_str(&format!("    - {limit}\n"));
        }
        text
    }

    /// Returns the URL of a call, if each tenant has its own host.
    pub fn url(&self) -> Option<&str> {
        self.profile.url.as_deref()
    }

    /// Returns true if each tenant has credentials of its own.
    pub fn has_secrets(&self) -> bool {
        !self.profile.headers.is_empty()
    }

    /// Returns the lines with `dispatch.http.api` and with the credentials in `folder`.
    pub fn keys(&self, folder: &str) -> String {
        let name = &self.profile.name;
        let mut text = format!(
            "    api: {name}    # what its answers mean; `sluicegate check` lists the rules\n"
        );
        let headers = self.profile.headers.iter();
        // A JSON string is also a YAML string.
        let header = |(name, value): &(String, String)| {
            format!("{name}: {}", serde_json::Value::from(value.as_str()))
        };
        let headers: Vec<String> = headers.map(header).collect();
        if !headers.is_empty() {
            text.push_str(&format!(
                "    headers: {{{}}}
    secrets-folder: {folder}    # a file for each tenant: the token of the tenant acme is in {folder}/acme
",
                headers.join(", ")
            ));
        }
        text
    }
}

/// Lists the known APIs with their plans.
pub fn list() -> String {
    let mut text = "Known APIs, with their plans (the first one is the default):\n".to_owned();
    for profile in ApiProfile::names().filter_map(ApiProfile::find) {
        let plans: Vec<&str> = profile
            .plans
            .iter()
            .map(|plan| plan.name.as_str())
            .collect();
        text.push_str(&format!(
            "  {:<16} {}: {}\n",
            profile.name,
            profile.title,
            plans.join(", ")
        ));
    }
    text
}
