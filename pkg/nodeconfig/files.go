package nodeconfig

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
)

// CheckFiles says which of the files and folders that the configuration names to
// be read cannot be: of those, a node that starts waits for some, and one that is
// only checked should not find out later. The wiring file has a check of its own.
func (c *Config) CheckFiles() error {
	var errs []error
	named(reflect.ValueOf(c).Elem(), "", func(path, value string, folder bool) {
		info, err := os.Stat(value)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w: put it there, or correct the path", path, err))
		case info.IsDir() != folder && folder:
			errs = append(errs, fmt.Errorf("%s: %s is not a folder", path, value))
		case info.IsDir() != folder:
			errs = append(errs, fmt.Errorf("%s: %s is a folder, and a file is needed", path, value))
		}
	})
	return errors.Join(errs...)
}

var sslFiles = map[string]bool{"sslRootCert": true, "sslCert": true, "sslKey": true}

// named calls fn for each field that names a file or a folder to be read.
func named(v reflect.Value, path string, fn func(path, value string, folder bool)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			named(v.Elem(), path, fn)
		}
	case reflect.Slice:
		for i := range v.Len() {
			named(v.Index(i), fmt.Sprintf("%s[%d]", path, i), fn)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, flags, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			if flags == "inline" {
				named(v.Field(i), path, fn)
				continue
			}
			if name == "" || name == "-" || name == "wiringFile" {
				continue
			}
			at := strings.TrimPrefix(path+"."+name, ".")
			f := v.Field(i)
			file, folder := strings.HasSuffix(name, "File") || sslFiles[name], name == "tokensDir"
			if f.Kind() == reflect.String && (file || folder) {
				if f.String() != "" {
					fn(at, f.String(), folder)
				}
				continue
			}
			named(f, at, fn)
		}
	}
}
