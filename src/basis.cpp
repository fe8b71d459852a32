// Types of coroutines' own are local to the files they are written in.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#include <ipybox/impl/async.ipp>
#include <ipybox/impl/config.ipp>
