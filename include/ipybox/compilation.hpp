#pragma once

/// \file
/// Whether the bodies of functions are compiled by everybody who includes a header, or once.
///
/// A header includes its bodies, `impl/NAME.ipp`, unless `IPYBOX_SEPARATE_COMPILATION` is defined,
/// as Meson's dependency and pkg-config define it: then one source file of the program includes
/// <ipybox/src.hpp>, which the compiled part, libipybox-compiled.a, has done.

#ifdef IPYBOX_SEPARATE_COMPILATION
#define IPYBOX_DECL
#else
#define IPYBOX_DECL inline
#endif
