package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Config says which bucket, and how to get at it. Only Bucket is needed where the
// environment holds the rest, as it does for Amazon's own tools.
type Config struct {
	Bucket string
	// Prefix comes before every key; a slash is put between. Empty: none.
	Prefix string
	// Endpoint is the URL of a store other than Amazon's.
	Endpoint string
	// PathStyle puts the bucket in the path of URLs instead of the name of the host.
	PathStyle bool
	// Region is the environment's when it is empty; with an Endpoint, else us-east-1.
	Region string
	// CAFile holds the authorities that are trusted in place of the system's.
	CAFile string

	// Encryption asks the store to encrypt: AES256 or aws:kms; empty leaves it to the
	// bucket. KMSKey is the id of the key for aws:kms; empty: the account's.
	Encryption string
	KMSKey     string

	// AccessKeyFile and SecretKeyFile hold static credentials, and SessionTokenFile a
	// token if they need one; they are read again every minute. Profile takes those of
	// a profile in Amazon's shared files. With neither, the environment's are taken.
	AccessKeyFile    string
	SecretKeyFile    string
	SessionTokenFile string
	Profile          string

	// RoleARN is a role to assume: with the token in WebIdentityTokenFile, or else
	// with the credentials above.
	RoleARN              string
	RoleSessionName      string
	ExternalID           string
	WebIdentityTokenFile string
	// STSEndpoint is where roles are assumed, if that is not Amazon's.
	STSEndpoint string

	// SingleWriter does without conditional writes, for a store that has none. It is
	// for the operator to see to it that there is one writer.
	SingleWriter bool

	// Timeout is how long a request may go without a byte passing; 30 s when it is 0.
	Timeout time.Duration
	// Attempts are how often a request is tried; 5 when it is 0.
	Attempts int
	// PartSize is the size of the first parts of large objects; 8 MiB when it is 0.
	PartSize int
}

// The ways in which a store can encrypt.
var Encryptions = []string{"AES256", "aws:kms"}

const (
	defaultTimeout  = 30 * time.Second
	defaultAttempts = 5
	defaultPart     = 8 << 20
	minPart         = 5 << 20 // the store's limit, but for the last
	maxPage         = 1000    // the store's limit
	secretsAge      = time.Minute
)

// New returns the destination of a bucket. It asks nothing of the store yet: Check
// does.
func New(ctx context.Context, c Config) (*Dest, error) {
	if c.Bucket == "" {
		return nil, errors.New("the bucket of an S3 archive has no name: give it")
	}
	prefix := strings.Trim(c.Prefix, "/")
	if prefix != "" {
		if err := dest.CheckKey(prefix); err != nil {
			return nil, fmt.Errorf("the prefix of an S3 archive: %w", err)
		}
		prefix += "/"
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Attempts == 0 {
		c.Attempts = defaultAttempts
	}
	if c.PartSize == 0 {
		c.PartSize = defaultPart
	}
	if c.PartSize < minPart {
		return nil, fmt.Errorf("the parts of an S3 object cannot be of %d bytes: use at least %d", c.PartSize, minPart)
	}
	client, err := c.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("s3://%s: %w", c.Bucket, err)
	}
	return &Dest{c: c, prefix: prefix, page: maxPage, s3: client}, nil
}

func (c *Config) client(ctx context.Context) (*awss3.Client, error) {
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(c.http()),
		config.WithRetryer(c.retryer),
		// Checksums are given with each request. A trailing one is refused by many stores.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if c.Region != "" {
		load = append(load, config.WithRegion(c.Region))
	}
	if c.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(c.Profile))
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, err
		}
		load = append(load, config.WithCustomCABundle(bytes.NewReader(pem)))
	}
	if c.AccessKeyFile != "" {
		load = append(load, config.WithCredentialsProvider(aws.CredentialsProviderFunc(c.static)))
	}
	ac, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, err
	}
	if ac.Region == "" && c.Endpoint != "" {
		ac.Region = "us-east-1"
	}
	if ac.Region == "" {
		return nil, errors.New("the region is not known: name it, or set AWS_REGION")
	}
	if c.RoleARN != "" {
		ac.Credentials = aws.NewCredentialsCache(c.role(ac))
	}
	return awss3.NewFromConfig(ac, func(o *awss3.Options) {
		o.UsePathStyle = c.PathStyle
		if c.Endpoint != "" {
			o.BaseEndpoint = &c.Endpoint
		}
	}), nil
}

// static reads the files of credentials. They may change.
func (c *Config) static(context.Context) (out aws.Credentials, err error) {
	out = aws.Credentials{Source: c.AccessKeyFile, CanExpire: true, Expires: time.Now().Add(secretsAge)}
	for _, f := range []struct {
		path string
		into *string
	}{{c.AccessKeyFile, &out.AccessKeyID}, {c.SecretKeyFile, &out.SecretAccessKey}, {c.SessionTokenFile, &out.SessionToken}} {
		if f.path == "" {
			continue
		}
		raw, err := os.ReadFile(f.path)
		if err != nil {
			return out, err
		}
		if *f.into = strings.TrimSpace(string(raw)); *f.into == "" {
			return out, fmt.Errorf("%s is empty: it is to hold a credential", f.path)
		}
	}
	return out, nil
}

func (c *Config) role(ac aws.Config) aws.CredentialsProvider {
	client := sts.NewFromConfig(ac, func(o *sts.Options) {
		if c.STSEndpoint != "" {
			o.BaseEndpoint = &c.STSEndpoint
		}
	})
	name := c.RoleSessionName
	if name == "" {
		name = "tributary"
	}
	if c.WebIdentityTokenFile != "" {
		return stscreds.NewWebIdentityRoleProvider(client, c.RoleARN, stscreds.IdentityTokenFile(c.WebIdentityTokenFile), func(o *stscreds.WebIdentityRoleOptions) {
			o.RoleSessionName = name
		})
	}
	return stscreds.NewAssumeRoleProvider(client, c.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		o.RoleSessionName = name
		if c.ExternalID != "" {
			o.ExternalID = &c.ExternalID
		}
	})
}

// retryer tries again what the SDK does, and 409: the answer of a store that is
// changing the object at this moment.
func (c *Config) retryer() aws.Retryer {
	return retry.AddWithErrorCodes(retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = c.Attempts
		o.MaxBackoff = 5 * time.Second
		// Attempts are bounded by MaxAttempts. A quota over all requests would fail
		// those that come after a short outage.
		o.RateLimiter = ratelimit.None
	}), "ConditionalRequestConflict", "OperationAborted")
}

// http is a client whose connections end when nothing passes. HTTP/2, where one
// connection would carry several requests, is not for it.
func (c *Config) http() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) {
		dialer := net.Dialer{Timeout: c.Timeout}
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &busyConn{conn, c.Timeout}, nil
		}
		tr.ForceAttemptHTTP2 = false
		tr.TLSHandshakeTimeout = c.Timeout
		tr.ResponseHeaderTimeout = c.Timeout
		tr.IdleConnTimeout = c.Timeout
		tr.MaxIdleConnsPerHost = 16
	})
}

// busyConn is a connection that fails when no byte has passed for a while, in
// either direction.
type busyConn struct {
	net.Conn
	timeout time.Duration
}

func (c *busyConn) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *busyConn) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
