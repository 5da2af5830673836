//! The OpenAPI 3.1 description of `/api/v1`, generated from its routes.

mod schemas;

use serde_json::{Map, Value, json};

use super::routes::{ApiRoute, Effect, Param, ParamKind, ParamLocation, ROUTES};

/// Returns the whole document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let method = match route.effect {
            Effect::Reads(_) => "get",
            Effect::Acts(_) => "post",
        };
        paths.insert(route.path.to_owned(), json!({method: operation(route)}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate",
            "version": "1",
            "description": "The output and the actions of the commands, at admin.listen. Reading \
                requires admin.token, or without one a program of the same machine; actions \
                require admin.operator-token.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": super::PREFIX}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "admin.token or admin.operator-token"},
                "operator": {"type": "http", "scheme": "bearer", "description": "admin.operator-token"},
            },
            "schemas": schemas::all(),
        },
    })
}

fn operation(route: &ApiRoute) -> Value {
    let of_path = route.params_in(ParamLocation::Path);
    let of_query = route.params_in(ParamLocation::Query);
    let mut parameters: Vec<Value> = (of_path.map(|param| parameter(param, "path")))
        .chain(of_query.map(|param| parameter(param, "query")))
        .collect();
    let mut operation = json!({"summary": route.about, "responses": responses(route)});
    if matches!(route.effect, Effect::Acts(_)) {
        parameters.push(json!({
            "name": super::OPERATOR,
            "in": "header",
            "description": "Operator's name for the audit log: at most 64 letters, digits, spaces \
                and .-_@+",
            "schema": {"type": "string"},
        }));
        operation["security"] = json!([{"operator": []}]);
        let field = |param: &Param| {
            let mut schema = schema(param);
            schema["description"] = param.about.into();
            (param.name.to_owned(), schema)
        };
        let fields: Map<String, Value> = route.params_in(ParamLocation::Body).map(field).collect();
        operation["requestBody"] = json!({
            "content": {"application/json": {"schema": {
                "type": "object", "properties": fields, "additionalProperties": false,
            }}},
        });
    }
    operation["parameters"] = parameters.into();
    operation
}

fn parameter(param: &Param, location: &str) -> Value {
    let mut schema = schema(param);
    if param.repeats {
        schema = json!({"type": "array", "items": schema});
    }
    json!({
        "name": param.name,
        "in": location,
        "required": location == "path",
        "description": param.about,
        "schema": schema,
    })
}

fn schema(param: &Param) -> Value {
    match param.kind {
        ParamKind::Text(max) => json!({"type": "string", "minLength": 1, "maxLength": max}),
        ParamKind::Span | ParamKind::Rate => json!({"type": "string"}),
        ParamKind::Number { min, max } => {
            json!({"type": "integer", "minimum": min, "maximum": max})
        }
        ParamKind::Flag => json!({"type": "boolean"}),
        ParamKind::Word(words) => json!({"type": "string", "enum": words}),
    }
}

/// Returns the responses of a route. Any other status is a problem, too.
fn responses(route: &ApiRoute) -> Value {
    let answer = json!({"$ref": format!("#/components/schemas/{}", route.answer)});
    let mut all = json!({
        "200": {"description": "Done", "content": {"application/json": {"schema": answer}}},
    });
    let acts = matches!(route.effect, Effect::Acts(_));
    let known = [
        (true, "400", "The request is invalid"),
        (true, "401", "The token is missing or wrong"),
        (
            true,
            "403",
            "The request is not permitted: the token is read-only or missing, or the request \
            comes from another site",
        ),
        (
            route.misses || route.accepts_pipeline(),
            "404",
            "The object does not exist",
        ),
        (acts, "413", "The body is too large"),
        (acts, "415", "The body is not JSON"),
        (
            route.asks_servers,
            "503",
            "Redis or RabbitMQ is unavailable, or there are too many requests at once",
        ),
        (true, "default", "Any other error"),
    ];
    for (_, status, about) in known.into_iter().filter(|(is_known, ..)| *is_known) {
        all[status] = json!({
            "description": about,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        });
    }
    all
}
