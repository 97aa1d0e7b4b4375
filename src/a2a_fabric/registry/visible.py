"""The catalog as each kind of caller sees it: only agents that it may call, with the capabilities that it may call.

A view is a catalog of its own, so whatever lists, counts, finds or suggests agents cannot tell of others. Callers with
the same trust tier and scopes share one. A view is made for the first such caller after the catalog has changed.
"""

from __future__ import annotations

from collections import OrderedDict

from a2a_fabric.core.call import Principal
from a2a_fabric.core.policy import Reach, all_narrowed, is_limited, reach_of
from a2a_fabric.registry.catalog import Catalog

_VIEWS_KEPT = 64


class VisibleCatalogs:
    def __init__(self) -> None:
        self._made_of: Catalog | None = None
        self._views: OrderedDict[Reach, Catalog] = OrderedDict()

    def of(self, catalog: Catalog, principal: Principal) -> Catalog:
        """The catalog itself for a caller whom nothing limits."""
        if not is_limited(principal):
            return catalog
        if catalog is not self._made_of:
            self._views.clear()
            self._made_of = catalog
        reach = reach_of(principal)
        view = self._views.get(reach)
        if view is None:
            view = self._views[reach] = self._view(catalog, principal)
            if len(self._views) > _VIEWS_KEPT:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(reach)
        return view

    def _view(self, catalog: Catalog, principal: Principal) -> Catalog:
        seen = all_narrowed(principal, catalog)
        is_whole = len(seen) == len(catalog) and all(a is b for a, b in zip(seen, catalog, strict=True))
        return catalog if is_whole else Catalog(seen)
