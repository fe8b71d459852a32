#pragma once
// Which MCP server it is that answers: what a person's "always" is bound to.
#include <boost/json/object.hpp>
#include <string>

namespace ipybox {

// The command line or URL of a server as it is configured, on one line, then where it starts and
// the names of the environment variables and headers it is given. Different ones give different
// texts. Variables stay as ${NAME}; values of the environment and of headers, logins and queries of
// URLs, and arguments that are secret by their name ("--token abc", "API_KEY=abc") are left out.
// params: as checked by check_server_params(), variables not replaced. Any thread.
std::string server_identity(const boost::json::object& params);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/tools/impl/server_identity.ipp>
#endif
