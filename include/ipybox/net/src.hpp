#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/net/impl/http_client.ipp>
#include <ipybox/net/impl/http_dial.ipp>
#include <ipybox/net/impl/http_exchange.ipp>
#include <ipybox/net/impl/http_listener.ipp>
#include <ipybox/net/impl/private_listener.ipp>
#include <ipybox/net/impl/url.ipp>
