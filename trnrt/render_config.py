"""The settings of `python -m trnrt render`, from flags, environment and TOML as those of serve are."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from stages.engine.origin import parse_origin
from stages.errors import ConfigError
from stages.ingress.forwarding import ForwardingRules, patterns_of
from trnrt.config import HttpConfig, check_http
from trnrt.flags import FlagParser, Layers, setting, shown
from trnrt.launch_engine import command_of, split_command

GROUPS = ("model", "engine", "http", "api", "logging")

Mode = Literal["render-only", "serving", "hosted"]


@frozen(kw_only=True)
class RenderConfig(HttpConfig):
    """Every setting of the renderer."""

    model_path: str | None = setting(None, "model", "model folder or hub name, as MODEL", alias="model")
    tokenizer_path: str | None = setting(None, "model", "folder or hub name of the tokenizer; the model's when absent")
    revision: str | None = setting(None, "model", "revision of both on the hub; main when absent")
    served_model_name: str | None = setting(None, "model", "name that requests carry; MODEL as given when absent")
    context_length: int | None = setting(None, "model", "longest prompt + answer in tokens; the model's own", low=8)
    vocab_size: int | None = setting(None, "model", "ids of the vocabulary; the model's own when absent", low=1)
    chat_template: str | None = setting(None, "model", "file or built-in name of a template in place of the model's")
    default_chat_template_kwargs: str = setting("{}", "model", "JSON object: a template's switches, least of all")
    trust_special_tokens: bool = setting(False, "model", "control tokens written in messages become control tokens")
    sampling_defaults: Literal["model", "openai"] = setting(
        "model", "model", "defaults of sampling: generation_config.json or OpenAI's"
    )
    resolved_sampling_params: str | None = setting(
        None, "model", "JSON object: defaults in place of both; needs --context-length and --vocab-size"
    )
    tool_call_parser: str | None = setting("auto", "model", "a name of docs/PARSERS.md, none, or auto: its card's")
    reasoning_parser: str | None = setting("auto", "model", "a name of docs/PARSERS.md, none, or auto: its card's")
    config: str | None = setting(None, "model", "TOML file with settings by field name")

    engine_url: str | None = setting(None, "engine", "origin of the engine; none is asked when absent")
    engine_api_key: str | None = setting(None, "engine", "key that the engine needs", secret=True)
    proxy_unhandled_routes: bool = setting(False, "engine", "pass all that is not served here on to the engine")
    proxy_allow: str = setting("*", "engine", "paths passed on, by commas; * is any text, an exact path beats the next")
    proxy_deny: str = setting("admin", "engine", "paths not passed on; admin: those that engines are run by; none")
    strict_engine_match: bool = setting(False, "engine", "end when the engine is not the one this model is for")
    launch_engine: str | None = setting(
        None, "engine", "command that starts the engine, also behind --; it ends with this server", secret=True
    )
    engine_start_timeout: float = setting(
        1800.0, "engine", "seconds a launched engine may take until its /health is 200", low=0.001
    )
    engine_stop_timeout: float = setting(
        30.0, "engine", "seconds a launched engine may take to end after SIGTERM", low=0.001
    )
    engine_connect_timeout: float = setting(10.0, "engine", "seconds a connection may take to open", low=0.001)
    engine_timeout: float | None = setting(
        None, "engine", "seconds until the first event of an answer; 504 after; no limit when absent", low=0.001
    )
    engine_idle_timeout: float | None = setting(
        None, "engine", "seconds between two events; 504 after; no limit when absent", low=0.001
    )
    engine_concurrency: int = setting(32, "engine", "choices of one request that may wait to be taken up", low=1)
    max_concurrent_requests: int = setting(4096, "engine", "choices with the engine at once; 503 above", low=1)

    workers: int = setting(
        1, "http", "processes that serve the address, each with a tokenizer of its own", low=1, alias="http-workers"
    )
    tokenizer_workers: int = setting(1, "api", "threads that render and tokenize, each with a tokenizer", low=1)
    queue_capacity: int = setting(128, "api", "prompts that may wait for those; others wait to be in the queue", low=1)
    num_reserved_tokens: int = setting(0, "api", "tokens of the context that no prompt may use", low=0)
    allow_auto_truncate: bool = setting(False, "api", "cut prompts and answers that are too long, in place of 400")
    allow_unknown_fields: bool = setting(False, "api", "ignore fields that no one knows, in place of 400")
    enable_return_hidden_states: bool = setting(False, "api", "take return_hidden_states on the render routes")
    stream_response_default_include_usage: bool = setting(
        False, "api", "end every stream with its usage, asked for or not"
    )

    @property
    def mode(self) -> Mode:
        """Return what the server is: without an engine, before one, or in one's place."""
        if self.engine_url is None:
            return "render-only"
        return "hosted" if self.proxy_unhandled_routes else "serving"

    def flags(self) -> dict[str, object]:
        """Return every setting by name, of a secret only that it is set."""
        return shown(self)


def load_render_config(argv: Sequence[str], environ: Mapping[str, str]) -> RenderConfig:
    """Return the RenderConfig of argv over environ over the TOML file; raises ConfigError with a name."""
    given: dict[str, Any] = vars(render_parser().parse_args(split_command(argv)))
    model = given.pop("MODEL", None)
    if model is not None:
        if given.get("model_path") not in (None, model):
            raise ConfigError(f"--model-path: MODEL is given too, as {model!r}; give one of them")
        given["model_path"] = model
    config = RenderConfig(**Layers(RenderConfig, given, environ).merged())
    _check(config)
    return config


def forwarding_rules(config: RenderConfig, own_keys: tuple[str, ...]) -> ForwardingRules:
    """Return what is passed on to the engine and with which key; raises ConfigError naming a flag."""
    return ForwardingRules(
        allow=patterns_of("--proxy-allow", config.proxy_allow),
        deny=patterns_of("--proxy-deny", config.proxy_deny),
        engine_api_key=config.engine_api_key,
        own_keys=own_keys,
    )


def render_parser() -> FlagParser:
    """Return the parser of all flags: grouped, one line a flag."""
    result = FlagParser(
        "python -m trnrt render",
        "Render prompts, and answer OpenAI's APIs and others from a /generate engine's tokens.",
    )
    result.add_argument("MODEL", nargs="?", help="model folder or hub name")
    result.add_settings(RenderConfig, GROUPS)
    return result


def _check(config: RenderConfig) -> None:
    if config.model_path is None:
        raise ConfigError("MODEL: give a model folder or a hub name")
    check_http(config)
    forwarding_rules(config, ())
    if config.launch_engine is not None and not command_of(config.launch_engine):
        raise ConfigError("--launch-engine: the command is empty")
    if config.engine_url is not None:
        parse_origin(config.engine_url)
        return
    for flag, is_given in (
        ("--proxy-unhandled-routes", config.proxy_unhandled_routes),
        ("--launch-engine", config.launch_engine is not None),
        ("--strict-engine-match", config.strict_engine_match),
        ("--engine-api-key", config.engine_api_key is not None),
        ("--engine-timeout", config.engine_timeout is not None),
        ("--engine-idle-timeout", config.engine_idle_timeout is not None),
    ):
        if is_given:
            raise ConfigError(f"{flag}: there is no engine without --engine-url")
