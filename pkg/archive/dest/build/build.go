// Package build makes the destination that a configuration or a URL names.
package build

import (
	"context"
	"fmt"
	"strings"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Destination makes the destination of a store. Nothing is asked of it yet.
func Destination(ctx context.Context, store string, c *nodeconfig.StoreConfig) (dest.Destination, error) {
	switch store {
	case nodeconfig.StoreLocal:
		return local.New(c.Path)
	case nodeconfig.StoreS3:
		return s3.New(ctx, s3Config(c))
	}
	return nil, fmt.Errorf("there is no archive store %q: use %s", store, strings.Join(nodeconfig.Stores, " or "))
}

func s3Config(c *nodeconfig.StoreConfig) s3.Config {
	out := s3.Config{
		Bucket: c.Bucket, Prefix: c.Prefix, Endpoint: c.Endpoint, Region: c.Region, CAFile: c.CAFile,
		PathStyle:  c.Endpoint != "",
		Encryption: c.Encryption, KMSKey: c.KMSKey, SingleWriter: c.SingleWriter, Timeout: c.Timeout,
	}
	if c.PathStyle != nil {
		out.PathStyle = *c.PathStyle
	}
	if r := c.Credentials; r != nil {
		out.AccessKeyFile, out.SecretKeyFile, out.SessionTokenFile, out.Profile = r.AccessKeyFile, r.SecretKeyFile, r.SessionTokenFile, r.Profile
		out.RoleARN, out.RoleSessionName, out.ExternalID = r.RoleARN, r.RoleSessionName, r.ExternalID
		out.WebIdentityTokenFile, out.STSEndpoint = r.WebIdentityTokenFile, r.STSEndpoint
	}
	return out
}

// Location reads where an archive is, as a person writes it: s3://bucket/prefix, or
// the path of a folder. What else a bucket needs is in c.
func Location(location string, c nodeconfig.StoreConfig) (store string, full nodeconfig.StoreConfig, err error) {
	scheme, rest, found := strings.Cut(location, "://")
	switch {
	case location == "":
		return "", c, fmt.Errorf("say where the archive is: the path of a folder, or s3://BUCKET/PREFIX")
	case !found:
		c = nodeconfig.StoreConfig{Path: location}
		return nodeconfig.StoreLocal, c, nil
	case scheme == "file":
		c = nodeconfig.StoreConfig{Path: rest}
		return nodeconfig.StoreLocal, c, nil
	case scheme == "s3":
		c.Bucket, c.Prefix, _ = strings.Cut(rest, "/")
		c.Prefix = strings.Trim(c.Prefix, "/")
		if c.Bucket == "" {
			return "", c, fmt.Errorf("%q names no bucket: write s3://BUCKET/PREFIX", location)
		}
		return nodeconfig.StoreS3, c, nil
	}
	return "", c, fmt.Errorf("cannot use %q: archives are in folders, and at s3://BUCKET/PREFIX", location)
}
