#pragma once
// The configuration of the plugin `gateway`.
#include <ipybox/jupyter/wire.hpp>
#include <ipybox/net/http_client.hpp>
#include <ipybox/remote_kernel.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::gateway {

struct Settings {
    bool remote = false;  // there is a server at `url`; otherwise a gateway is started here
    std::string url;      // of the server, without a slash at its end
    HttpHeaders headers;
    std::string kernel_name;
    json::object env;  // for the server's launcher: KERNEL_* and what it allows
    std::string cwd;
    std::vector<std::string> gateway_options;
    Duration ping_interval = std::chrono::seconds(10);
    Duration reconnect_timeout = std::chrono::seconds(60);
    int connect_retries = 10;
    Duration retry_interval = std::chrono::seconds(1);
    std::string ca_file;
    jupyter::WireLimits limits;
    std::optional<ToolListener> tool_listener;
};

// config: fits the schema. Throws Error: bad_config, bad_argument for a URL that is none.
Settings read_settings(const json::object& config);

inline constexpr std::string_view config_schema =
    R"({
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "url": {
      "type": "string",
      "description": "Base URL of a Jupyter server, kernel gateway or enterprise gateway; )"
    R"(without it, a kernel gateway is started in the sandbox."
    },
    "token": {
      "type": "string",
      "description": "The server's token. ${NAME} here, in user, password and headers is )"
    R"(replaced from the environment."
    },
    "user": {"type": "string", "description": "For basic authentication, with password."},
    "password": {"type": "string"},
    "headers": {
      "type": "object", "additionalProperties": {"type": "string"},
      "description": "Sent with every request."
    },
    "ca_file": {
      "type": "string",
      "description": "PEM file of the authorities to trust; default: the system's."
    },
    "kernel_name": {
      "type": "string",
      "description": "Kernel specification; default: the server's default."
    },
    "env": {
      "type": "object", "additionalProperties": {"type": "string"},
      "description": "Parameters of the kernel's launch: KERNEL_* and what else )"
    R"(the server lets pass."
    },
    "cwd": {
      "type": "string",
      "description": "Directory on the kernel's machine in which it starts."
    },
    "ping_interval": {
      "type": "number", "minimum": 0.1, "default": 10,
      "description": "Seconds of silence after which the server and the kernel )"
    R"(are asked for a sign of life."
    },
    "reconnect_timeout": {
      "type": "number", "minimum": 0, "default": 60,
      "description": "Seconds to try for a new connection when one breaks."
    },
    "connect_retries": {
      "type": "integer", "minimum": 0, "default": 10,
      "description": "How often to try again when the server cannot be reached at the start."
    },
    "retry_interval": {
      "type": "number", "minimum": 0.01, "default": 1,
      "description": "Seconds between two attempts."
    },
    "tool_channel": {
      "type": "object", "additionalProperties": false,
      "required": ["listen", "advertise", "certificate", "key"],
      "description": "Tool calls come over TLS instead of travelling in the )"
    R"(kernel's messages; needs url.",
      "properties": {
        "listen": {
          "type": "string",
          "description": "ADDRESS:PORT of this machine; port 0: any that is free."
        },
        "advertise": {
          "type": "string",
          "description": "https://NAME[:PORT] by which kernels reach it; without PORT, )"
    R"(the one listened at."
        },
        "certificate": {
          "type": "string",
          "description": "PEM file, made out to NAME. Kernels trust it and nothing else; )"
    R"(no authority is needed."
        },
        "key": {
          "type": "string",
          "description": "PEM file of its key, without a passphrase."
        }
      }
    },
    "gateway_options": {
      "type": "array", "items": {"type": "string"},
      "description": "More options for a kernel gateway that is started here."
    },
    "max_message_bytes": {
      "type": "integer", "minimum": 1048576, "maximum": 2147483647, "default": 33554432,
      "description": "Largest message taken from the kernel, a plot or one huge print, in bytes."
    }
  }
})";

}  // namespace ipybox::gateway
