PROFILES = {"development": 8080, "test": 8081, "production": 8471}
FALLBACK = "production"


def port_of(profile):
    return PROFILES[profile]
