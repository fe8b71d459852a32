#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/oauth/impl/oauth.ipp>
#include <ipybox/oauth/impl/oauth_clients.ipp>
#include <ipybox/oauth/impl/oauth_discovery.ipp>
#include <ipybox/oauth/impl/oauth_grants.ipp>
#include <ipybox/oauth/impl/protocol.ipp>
#include <ipybox/oauth/impl/redirect.ipp>
