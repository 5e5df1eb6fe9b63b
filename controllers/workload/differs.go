package workload

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// Differs says whether an object must be applied again: what is desired has
// changed since it was last applied, or someone changed a field of it. Fields
// that others added are left alone.
func Differs(desired, live *unstructured.Unstructured) bool {
	return !within(desired.Object, live.Object)
}

// within says whether every value in want is in have. Items of lists are found
// by their name, so that others may stand between them; items without names are
// compared one by one, since the server keeps their order.
func within(want, have any) bool {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok && len(w) > 0 {
			return false
		}
		for k, v := range w {
			if !within(v, h[k]) {
				return false
			}
		}
		return true
	case []any:
		h, _ := have.([]any)
		if byName := named(h); byName != nil && named(w) != nil {
			for name, item := range named(w) {
				if !within(item, byName[name]) {
					return false
				}
			}
			return true
		}
		if len(w) != len(h) {
			return false
		}
		for i := range w {
			if !within(w[i], h[i]) {
				return false
			}
		}
		return true
	case nil:
		return true
	default:
		return want == have
	}
}

// named returns the items of a list by their names; nil if one has none.
func named(list []any) map[string]any {
	out := make(map[string]any, len(list))
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, ok := m["name"].(string)
		if !ok {
			return nil
		}
		out[name] = item
	}
	return out
}
